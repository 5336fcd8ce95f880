#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "everlong/index/heads_kernel.h"
#include "everlong/index/key_tiles.h"
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
  for (const int32_t dim : {1, 7, 64}) {
    for (const int32_t tokens : {1, 15, 32, 33, 64, 100}) {
      for (const int32_t first : {0, tokens / 2, tokens - 1}) {
        KeyTiles tiles(1, dim);
        std::vector<float> keys(static_cast<size_t>(tokens * dim));
        std::ranges::generate(keys, [&] { return normal(random); });
        ASSERT_TRUE(tiles.Add(keys, tokens).ok());
        std::vector<float> rows(static_cast<size_t>(dim * kBlockRows));
        std::ranges::generate(rows, [&] { return normal(random); });
        std::vector<float> scores(static_cast<size_t>(tiles.tiles(0) * kTileTokens * kBlockRows));
        float maxima[kBlockRows];
        float sums[kBlockRows];
        kernel().score_page({tiles.keys(0, 0), tiles.tiles(0), dim, first, tokens}, rows.data(), scores.data(), maxima,
                            sums);
        for (int32_t row = 0; row < kBlockRows; ++row) {
          double largest = -std::numeric_limits<double>::infinity();
          double sum = 0;
          for (int32_t token = first; token < tokens; ++token) {
            double dot = 0;
            for (int32_t i = 0; i < dim; ++i) {
              dot += RoundToBf16(keys[static_cast<size_t>(token * dim + i)]) *
                     static_cast<double>(rows[static_cast<size_t>(i * kBlockRows + row)]);
            }
            largest = std::max(largest, dot);
            sum += std::exp2(dot);
          }
          EXPECT_NEAR(maxima[row], largest, 1e-5 + 1e-5 * std::abs(largest));
          EXPECT_NEAR(sums[row] * std::exp2(static_cast<double>(maxima[row])), sum, 2e-5 * sum);
        }
      }
    }
  }
}

TEST_P(HeadsKernelTest, Exp2IsAccurate) {
  // One row with sum and factor 1, its maximum x, the archive's 0: the mass is 2^x.
  constexpr int32_t kRows = kRowMultiple;
  const std::vector<float> zeros(kRows, 0.0F);
  std::vector<float> one_row(kRows, 0.0F);
  one_row[3] = 1.0F;
  for (int32_t step = 0; step < 9190; ++step) {
    const float x = -0.0137F * static_cast<float>(step);  // down to -125.9
    const std::vector<float> maxima(kRows, x);
    const float mass = kernel().page_mass(maxima.data(), one_row.data(), kRows, zeros.data(), one_row.data());
    const double exact = std::exp2(static_cast<double>(x));
    ASSERT_NEAR(mass, exact, 3e-7 * exact) << x;
  }
  for (const float x : {-126.5F, -1000.0F, -std::numeric_limits<float>::max()}) {
    const std::vector<float> maxima(kRows, x);
    EXPECT_EQ(kernel().page_mass(maxima.data(), one_row.data(), kRows, zeros.data(), one_row.data()), 0.0F);
  }
}

TEST_P(HeadsKernelTest, CombinesPages) {
  std::mt19937 random(21);
  std::uniform_real_distribution<float> uniform(-20.0F, 20.0F);
  constexpr int64_t kRows = 2 * kRowMultiple;
  for (const int64_t pages : {1, 2, 64}) {
    std::vector<float> maxima(static_cast<size_t>(pages * kRows));
    std::vector<float> sums(maxima.size());
    std::ranges::generate(maxima, [&] { return uniform(random); });
    std::ranges::generate(sums, [&] { return 21.0F + uniform(random); });
    std::vector<float> maximum(kRows);
    std::vector<float> sum(kRows);
    kernel().combine_pages(maxima.data(), sums.data(), pages, kRows, maximum.data(), sum.data());
    for (int64_t row = 0; row < kRows; ++row) {
      float largest = maxima[static_cast<size_t>(row)];
      double total = 0;
      for (int64_t page = 0; page < pages; ++page) {
        const auto at = static_cast<size_t>(page * kRows + row);
        largest = std::max(largest, maxima[at]);
        total += sums[at] * std::exp2(static_cast<double>(maxima[at]));
      }
      EXPECT_EQ(maximum[static_cast<size_t>(row)], largest);
      EXPECT_NEAR(sum[static_cast<size_t>(row)] * std::exp2(static_cast<double>(largest)), total, 1e-5 * total);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Supported, HeadsKernelTest, testing::Range(0, SupportedHeadsKernels().count));

}  // namespace
}  // namespace everlong::index
