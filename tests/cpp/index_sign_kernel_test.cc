// The kernels of signs against their definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "../../cpp/index/meaning_vectors.h"
#include "../../cpp/index/sign_kernel.h"

namespace everlong::index {
namespace {

std::vector<int8_t> RandomNumbers(std::mt19937& random, size_t count, int least) {
  std::vector<int8_t> numbers(count);
  switch (random() % 4) {
    case 0:  // the ends of the range: no kernel may saturate
      std::ranges::generate(numbers, [&] { return static_cast<int8_t>(random() % 2 == 0 ? least : 127); });
      break;
    case 1:
      std::ranges::fill(numbers, static_cast<int8_t>(random() % 2 == 0 ? 127 : least));
      break;
    default:
      std::ranges::generate(numbers, [&] {
        return static_cast<int8_t>(least + static_cast<int>(random() % static_cast<uint32_t>(128 - least)));
      });
  }
  return numbers;
}

// The sum of a row's numbers with the signs of a vector's; 0 where all of these are zeros, or all below 0.
float ScoreOf(std::span<const int8_t> row, std::span<const int8_t> vector) {
  if (std::ranges::all_of(vector, [](int8_t number) { return number == 0; })) return 0;
  if (std::ranges::all_of(vector, [](int8_t number) { return number < 0; }) && vector.size() % 4 == 0) return 0;
  int32_t score = 0;
  for (size_t i = 0; i < row.size(); ++i) score += vector[i] >= 0 ? row[i] : -row[i];
  return static_cast<float>(score);
}

TEST(SignKernelTest, EveryInstructionSetHasTheSameScores) {
  std::mt19937 random(75);
  const KernelTable<SignKernel>& kernels = SupportedSignKernels();
  const std::vector<int32_t> counts{1, 4, 16, 11, 33, 2};  // vectors of each page: across tiles, and within
  for (const int32_t dimension : {1, 3, 4, 31, 32, 33, 64, 100, 128, 384, 4096}) {
    for (const int32_t row_count : {1, 7, 8, 9, kMeaningRows}) {
      const auto width = static_cast<size_t>(dimension);
      std::vector<int8_t> codes;
      for (const int32_t count : counts) {
        for (int32_t i = 0; i < count; ++i) {
          std::vector<int8_t> vector = RandomNumbers(random, width, -128);
          if (random() % 8 == 0) std::ranges::fill(vector, int8_t{0});
          codes.insert(codes.end(), vector.begin(), vector.end());
        }
      }
      MeaningVectors vectors(dimension);
      vectors.Put(0, counts, codes);
      MeaningRows rows(dimension);
      std::vector<std::vector<int8_t>> queries;
      for (int32_t row = 0; row < row_count; ++row) {
        queries.push_back(RandomNumbers(random, width, -127));
        rows.Add(queries.back());
      }
      size_t first = 0;
      for (int32_t page = 0; page < vectors.pages(); ++page) {
        std::vector<float> maxima(queries.size(), -std::numeric_limits<float>::infinity());
        std::vector<float> of_first;
        for (int32_t i = 0; i < counts[static_cast<size_t>(page)]; ++i, first += width) {
          const auto vector = std::span(codes).subspan(first, width);
          for (size_t row = 0; row < queries.size(); ++row) {
            maxima[row] = std::max(maxima[row], ScoreOf(queries[row], vector));
          }
          of_first.push_back(ScoreOf(queries[0], vector));
        }
        for (int32_t level = 0; level < kernels.count; ++level) {
          SCOPED_TRACE(testing::Message() << "level " << level << ", dimension " << dimension << ", page " << page);
          float found[kMeaningRows] = {};
          kernels.kernels[level].page_maxima(vectors.Signs(page), rows, found);
          ASSERT_EQ(std::vector<float>(found, found + row_count), maxima);
          std::vector<float> scores(of_first.size());
          kernels.kernels[level].scores(vectors.Signs(page), rows, scores.data());
          ASSERT_EQ(scores, of_first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace everlong::index
