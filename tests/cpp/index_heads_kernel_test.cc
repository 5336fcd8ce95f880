#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "../../cpp/index/heads_kernel.h"
#include "../../cpp/index/key_tiles.h"
#include "index_reference.h"

namespace everlong::index {
namespace {

// Every instruction set of this CPU against fp64.
class HeadsKernelTest : public testing::TestWithParam<int32_t> {
 protected:
  [[nodiscard]] static const HeadsKernel& kernel() { return SupportedHeadsKernels().kernels[GetParam()]; }
};

TEST_P(HeadsKernelTest, ScoresAPage) {
  std::mt19937 random(20);
  std::normal_distribution<float> normal;
  for (const int32_t dim : {1, 2, 7, 64}) {
    for (const int32_t tokens : {1, 8, 15, 32, 33, 64, 100}) {
      for (const int32_t first : {0, tokens / 2, tokens - 1}) {
        SCOPED_TRACE(testing::Message() << "D " << dim << ", tokens [" << first << ", " << tokens << ")");
        KeyTiles tiles(1, dim);
        std::vector<float> keys(static_cast<size_t>(tokens * dim));
        std::ranges::generate(keys, [&] { return normal(random); });
        ASSERT_TRUE(tiles.Add(keys, tokens).ok());
        std::vector<float> queries(static_cast<size_t>(dim * kBlockRows));
        std::ranges::generate(queries, [&] { return normal(random); });
        QueryRows rows(dim);
        for (int32_t row = 0; row < kBlockRows; ++row) {
          rows.Set(row, std::span(queries).subspan(static_cast<size_t>(row * dim), static_cast<size_t>(dim)));
        }
        float references[kBlockRows];
        std::ranges::generate(references, [&] { return 10.0F * normal(random); });
        const PageKeys page{tiles.keys(0, 0), PairsOf(dim), first, tokens};
        float maxima[kBlockRows];
        float sums[kBlockRows];
        kernel().page_maxima(page, rows, maxima);
        float peaks[kBlockRows];
        kernel().page_sums(page, rows, references, sums);
        kernel().powers(maxima, references, peaks);
        for (int32_t row = 0; row < kBlockRows; ++row) {
          double largest = -std::numeric_limits<double>::infinity();
          double sum = 0;
          for (int32_t token = first; token < tokens; ++token) {
            double dot = 0;
            for (int32_t i = 0; i < dim; ++i) {
              dot += RoundToBf16(keys[static_cast<size_t>(token * dim + i)]) *
                     RoundToBf16(queries[static_cast<size_t>(row * dim + i)]);
            }
            largest = std::max(largest, dot);
            sum += std::exp2(dot - references[row]);
          }
          EXPECT_NEAR(maxima[row], largest, 1e-5 + 1e-5 * std::abs(largest));
          EXPECT_NEAR(sums[row], sum, 2e-5 * sum);
          const double peak = std::exp2(largest - references[row]);
          EXPECT_NEAR(peaks[row], peak, 2e-5 * peak);
        }
      }
    }
  }
}

TEST_P(HeadsKernelTest, Exp2IsAccurate) {
  // One token whose score is 0: the sum is 2^-reference.
  KeyTiles tiles(1, 2);
  const std::vector<float> key(2, 1.0F);
  ASSERT_TRUE(tiles.Add(key, 1).ok());
  const PageKeys page{tiles.keys(0, 0), 1, 0, 1};
  const QueryRows zeros(2);
  float references[kBlockRows] = {};
  float sums[kBlockRows];
  for (int32_t step = 0; step < 16480; ++step) {
    const float x = 100.0F - 0.0137F * static_cast<float>(step);  // down to -125.9
    references[3] = -x;
    kernel().page_sums(page, zeros, references, sums);
    const double exact = std::exp2(static_cast<double>(x));
    ASSERT_NEAR(sums[3], exact, 3e-6 * exact) << x;
    ASSERT_NEAR(sums[2], 1, 3e-6);
  }
  for (const float x : {-127.5F, -1000.0F, -std::numeric_limits<float>::max()}) {
    references[3] = -x;
    kernel().page_sums(page, zeros, references, sums);
    EXPECT_LE(sums[3], std::exp2(-126.0F)) << x;
    if (x < -150) {
      EXPECT_EQ(sums[3], 0.0F) << x;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Supported, HeadsKernelTest, testing::Range(0, SupportedHeadsKernels().count));

}  // namespace
}  // namespace everlong::index
