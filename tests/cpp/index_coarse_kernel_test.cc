#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "../../cpp/index/coarse_kernel.h"
#include "../../cpp/index/key_tiles.h"
#include "everlong/base/element.h"
#include "index_reference.h"

namespace everlong::index {
namespace {

uint32_t CodeAt(std::span<const uint32_t> tiles, int32_t words, int32_t token, int32_t axis) {
  const int32_t tile = token / kTileTokens * words * kTileTokens;
  const uint32_t word = tiles[static_cast<size_t>(tile + axis / kWordAxes * kTileTokens + token % kTileTokens)];
  return word >> (axis % 4 * 8 + axis % kWordAxes / 4 * 4) & 15U;
}

// Every instruction set of this CPU against numbers made one by one.
class CoarseKernelTest : public testing::TestWithParam<int32_t> {
 protected:
  [[nodiscard]] static const CoarseKernel& kernel() { return SupportedCoarseKernels().kernels[GetParam()]; }
};

TEST_P(CoarseKernelTest, ScoresAPageToTheBit) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int32_t words : {1, 3, 12}) {
    for (const int32_t tokens : {1, 8, 15, 32, 33, 64, 100}) {
      for (const int32_t first : {0, tokens / 2, tokens - 1}) {
        SCOPED_TRACE(testing::Message() << words << " words, tokens [" << first << ", " << tokens << ")");
        std::vector<uint32_t> tiles(static_cast<size_t>(TilesOf(tokens) * words * kTileTokens));
        std::ranges::generate(tiles, [&] { return static_cast<uint32_t>(random()); });
        if (tokens == 33) std::ranges::fill(tiles, 0xFFFFFFFFU);  // the largest codes
        const int32_t axes = words * kWordAxes;
        CoarseRows rows(axes);
        std::vector<float> queries(static_cast<size_t>(axes * kBlockRows));
        std::ranges::generate(queries, [&] { return normal(random); });
        if (tokens == 33) std::ranges::fill(queries, 3.0F);
        for (int32_t row = 0; row < kBlockRows - 1; ++row) {  // the last stays zeros
          rows.Set(row, std::span(queries).subspan(static_cast<size_t>(row * axes), static_cast<size_t>(axes)));
        }
        float maxima[kBlockRows];
        kernel().page_maxima({tiles.data(), words, first, tokens}, rows, maxima);
        EXPECT_EQ(maxima[kBlockRows - 1], 0.0F);
        for (int32_t row = 0; row < kBlockRows - 1; ++row) {
          const std::span<const float> query =
              std::span(queries).subspan(static_cast<size_t>(row * axes), static_cast<size_t>(axes));
          float largest = 0;
          for (const float number : query) largest = std::max(largest, std::abs(number));
          int32_t best = INT32_MIN;
          double exact = -INFINITY;
          for (int32_t token = first; token < tokens; ++token) {
            int32_t dot = 0;
            double sum = 0;
            for (int32_t axis = 0; axis < axes; ++axis) {
              const auto code = static_cast<int32_t>(CodeAt(tiles, words, token, axis));
              const float number = query[static_cast<size_t>(axis)];
              dot += code * static_cast<int32_t>(std::nearbyint(number * (127 / largest)));
              sum += code * double{number};
            }
            best = std::max(best, dot);
            exact = std::max(exact, sum);
          }
          EXPECT_EQ(maxima[row], static_cast<float>(best) * (largest / 127));
          EXPECT_NEAR(maxima[row], exact, axes * 15 * double{largest} / 254);
          EXPECT_LE(maxima[row], rows.bound(row) * (1 + 1e-6));
        }
      }
    }
  }
}

TEST_P(CoarseKernelTest, CodesAreTheNearestOfFp64) {
  std::mt19937_64 random(12);
  std::normal_distribution<float> normal;
  for (const int32_t dim : {1, 3, 16, 64, 80}) {
    for (const int32_t words : {1, 3}) {
      const int32_t axes = words * kWordAxes;
      KeyTiles tiles(1, dim);
      std::vector<float> keys(static_cast<size_t>(kTileTokens * dim));
      std::ranges::generate(keys, [&] { return normal(random); });
      ASSERT_TRUE(tiles.Add(keys, kTileTokens).ok());
      std::vector<float> along(static_cast<size_t>(2 * PairsOf(dim) * axes));
      std::ranges::generate(along, [&] { return normal(random); });
      std::vector<float> offsets(static_cast<size_t>(axes));
      std::ranges::generate(offsets, [&] { return 8 + normal(random); });
      std::vector<uint32_t> out(static_cast<size_t>(words * kTileTokens) + 1, 0xDEADU);
      kernel().encode(tiles.keys(0, 0), PairsOf(dim), along.data(), offsets.data(), words, out.data());
      EXPECT_EQ(out.back(), 0xDEADU);
      for (int32_t token = 0; token < kTileTokens; ++token) {
        for (int32_t axis = 0; axis < axes; ++axis) {
          double expected = offsets[static_cast<size_t>(axis)];
          double size = 0;
          for (int32_t i = 0; i < dim; ++i) {
            const double product = double{RoundToBf16(keys[static_cast<size_t>(token * dim + i)])} *
                                   along[static_cast<size_t>(i * axes + axis)];
            expected += product;
            size += std::abs(product);
          }
          const double code = CodeAt(out, words, token, axis);
          // The code is the integer below, and either one where rounding decides.
          const double slack = 1e-5 * size;
          EXPECT_GE(code, std::floor(std::clamp(expected - slack, 0.0, 15.0))) << dim << " " << words;
          EXPECT_LE(code, std::floor(std::clamp(expected + slack, 0.0, 15.0))) << dim << " " << words;
        }
      }
    }
  }
}

TEST_P(CoarseKernelTest, WhatIsNoNumberHasACode) {
  const std::vector<uint32_t> tile(kTileTokens, 0x7FC07FC0U);  // NaN
  const std::vector<float> axes(2 * kWordAxes, 1.0F);
  const std::vector<float> offsets(kWordAxes);
  std::vector<uint32_t> out(kTileTokens, 0xDEADU);
  kernel().encode(tile.data(), 1, axes.data(), offsets.data(), 1, out.data());
  EXPECT_EQ(out, std::vector<uint32_t>(kTileTokens));
}

TEST_P(CoarseKernelTest, RowsBehindTheLastScoreZero) {
  const std::vector<uint32_t> tile(kTileTokens, 0x11111111U);
  for (int32_t count = 0; count <= kBlockRows; ++count) {
    CoarseRows rows(kWordAxes);
    for (int32_t row = 0; row < count; ++row) {
      rows.Set(row, std::vector<float>(kWordAxes, static_cast<float>(row + 1)));
    }
    EXPECT_EQ(rows.count(), count);
    float maxima[kBlockRows];
    std::ranges::fill(maxima, -1.0F);
    kernel().page_maxima({tile.data(), 1, 0, kTileTokens}, rows, maxima);
    for (int32_t row = 0; row < kBlockRows; ++row) {
      EXPECT_FLOAT_EQ(maxima[row], row < count ? static_cast<float>(8 * (row + 1)) : 0.0F);
    }
  }
}

TEST_P(CoarseKernelTest, AQueryNearZeroScoresZero) {
  const std::vector<uint32_t> tile(kTileTokens, 0xFFFFFFFFU);
  CoarseRows rows(kWordAxes);
  rows.Set(0, std::vector<float>(kWordAxes, 1e-40F));
  rows.Set(1, std::vector<float>(kWordAxes, -1.0F));
  float maxima[kBlockRows];
  kernel().page_maxima({tile.data(), 1, 0, kTileTokens}, rows, maxima);
  EXPECT_EQ(maxima[0], 0.0F);
  EXPECT_FLOAT_EQ(maxima[1], -8 * 15);
  EXPECT_EQ(rows.bound(1), 0);
}

INSTANTIATE_TEST_SUITE_P(Supported, CoarseKernelTest, testing::Range(0, SupportedCoarseKernels().count));

}  // namespace
}  // namespace everlong::index
