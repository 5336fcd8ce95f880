// Which centres are nearest, against all of them in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "../../cpp/graph/centre_index.h"
#include "../../cpp/graph/code_kernel.h"

namespace everlong::graph {
namespace {

TEST(GraphCodeKernel, EveryInstructionSetGivesTheDistances) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> code(-127, 127);
  for (const int64_t width : {2, 6, 16, 130}) {
    const int64_t groups = 3;
    std::vector<int8_t> rows(static_cast<size_t>(groups * kGroupRows * width));
    for (int8_t& number : rows) number = static_cast<int8_t>(code(random));
    std::vector<int16_t> query;
    for (int64_t i = 0; i < width; ++i) query.push_back(static_cast<int16_t>(code(random)));
    std::vector<int32_t> squares;
    std::vector<int64_t> expected;
    int64_t square = 0;
    for (const int16_t number : query) square += number * number;
    for (int64_t row = 0; row < groups * kGroupRows; ++row) {
      int64_t of_row = 0;
      int64_t apart = 0;
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at =
            row / kGroupRows * kGroupRows * width + i / 2 * 2 * kGroupRows + row % kGroupRows * 2 + i % 2;
        const int64_t number{rows[static_cast<size_t>(at)]};
        of_row += number * number;
        apart += (number - query[static_cast<size_t>(i)]) * (number - query[static_cast<size_t>(i)]);
      }
      squares.push_back(static_cast<int32_t>(of_row));
      expected.push_back(apart);
    }
    std::vector<int64_t> sorted = expected;
    std::ranges::sort(sorted);
    const auto limit = static_cast<int32_t>(sorted[20]);
    for (int32_t which = 0; which < SupportedCodeKernels().count; ++which) {
      std::vector<int32_t> distances(static_cast<size_t>(groups * kGroupRows));
      std::vector<uint16_t> near(static_cast<size_t>(groups));
      SupportedCodeKernels().kernels[which].distances(rows.data(), squares.data(), groups, width,
                                                      {query.data(), static_cast<int32_t>(square), limit},
                                                      distances.data(), near.data());
      for (size_t row = 0; row < expected.size(); ++row) {
        ASSERT_EQ(distances[row], expected[row]) << "kernel " << which << ", width " << width << ", row " << row;
        const uint32_t bit = static_cast<uint32_t>(near[row / kGroupRows]) >> (row % kGroupRows) & 1U;
        ASSERT_EQ(bit == 1, expected[row] <= limit) << "kernel " << which << ", row " << row;
      }
    }
  }
}

// An index, and where its centres are.
class Centres {
 public:
  Centres(int32_t dimension, int64_t looked_at)
      : index(dimension, looked_at, [this](int64_t id) -> const Sums& { return where.at(id); }) {}
  void Put(int64_t id, const std::vector<float>& at) {
    where[id] = Sums::Of(at).value();
    index.Put(id);
  }
  void Remove(int64_t id) {
    index.Remove(id);
    where.erase(id);
  }
  [[nodiscard]] std::vector<std::pair<double, int64_t>> Sorted(const Sums& to) const {
    std::vector<std::pair<double, int64_t>> sorted;
    for (const auto& [id, sums] : where) sorted.emplace_back(std::sqrt(SquaredDistance(sums, to)), id);
    std::ranges::sort(sorted);
    return sorted;
  }
  // The k nearest that are not farther than `farthest` are among what it finds, in order of how near they may be.
  void ExpectExact(const Sums& to, int64_t k, double farthest) {
    std::map<int64_t, double> least;
    double before = 0;
    for (const CentreIndex::Candidate& candidate : index.Nearest(to, k, farthest)) {
      EXPECT_TRUE(least.emplace(candidate.id, candidate.least).second);
      EXPECT_GE(candidate.least, before);
      before = candidate.least;
      EXPECT_LE(candidate.least, std::sqrt(SquaredDistance(where.at(candidate.id), to)));
    }
    for (const auto& [distance, id] : Sorted(to)) {
      if (distance > farthest || k-- == 0) break;
      EXPECT_TRUE(least.contains(id)) << id << " at " << distance;
    }
  }

  std::map<int64_t, Sums> where;
  CentreIndex index;
};

std::vector<float> Drawn(std::mt19937& random, int32_t dimension, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> drawn(static_cast<size_t>(dimension));
  for (float& value : drawn) value = normal(random);
  return drawn;
}

TEST(GraphCentreIndex, MissesNoneOfFew) {
  for (const int32_t dimension : {1, 3, 32}) {
    std::mt19937 random(static_cast<uint32_t>(dimension));
    Centres centres(dimension, 100'000);
    std::vector<int64_t> ids;
    for (int64_t step = 0; step < 3000; ++step) {
      const auto what = random() % 10;
      // They drift, and lie farther and farther apart.
      std::vector<float> at = Drawn(random, dimension, 0.1F + static_cast<float>(step) / 2000);
      at[0] += static_cast<float>(step) / 1000;
      if (what < 7 || ids.empty()) {
        centres.Put(step, at);
        ids.push_back(step);
      } else if (what < 9) {
        centres.Put(ids[random() % ids.size()], at);
      } else {
        std::swap(ids[random() % ids.size()], ids.back());
        centres.Remove(ids.back());
        ids.pop_back();
      }
      ASSERT_EQ(centres.index.size(), std::ssize(centres.where));
      if (step % 50 != 0 || ids.empty()) continue;
      const Sums to = Sums::Of(Drawn(random, dimension, 1.0F)).value();
      centres.ExpectExact(to, 3, 100);
      centres.ExpectExact(to, 1, 0.5);
      centres.ExpectExact(centres.where.at(ids.front()), 2, 100);
      ASSERT_FALSE(HasFailure());
    }
    while (!ids.empty()) {
      centres.Remove(ids.back());
      ids.pop_back();
    }
    EXPECT_TRUE(centres.index.Nearest(Sums::Of(Drawn(random, dimension, 1)).value(), 2, 100).empty());
  }
}

TEST(GraphCentreIndex, FindsNearlyAllWhereItLooksAtATenth) {
  // Around some hundred places, which come one after the other.
  std::mt19937 random(7);
  const int32_t dimension = 24;
  Centres centres(dimension, 800);
  std::vector<std::vector<float>> all;
  for (int64_t id = 0; id < 8000; ++id) {
    if (id % 80 == 0) all.push_back(Drawn(random, dimension, 0.6F));
    std::vector<float> at = Drawn(random, dimension, 0.15F);
    for (size_t i = 0; i < at.size(); ++i) at[i] += all.back()[i];
    centres.Put(id, at);
  }
  int found = 0;
  for (int i = 0; i < 500; ++i) {
    const Sums& centre = centres.where.at(static_cast<int64_t>(random() % 8000));
    std::vector<float> at = centre.Mean();
    const std::vector<float> beside = Drawn(random, dimension, 0.1F);
    for (size_t j = 0; j < at.size(); ++j) at[j] += beside[j];
    const Sums to = Sums::Of(at).value();
    const int64_t nearest = centres.Sorted(to)[0].second;
    const auto candidates = centres.index.Nearest(to, 1, 100);
    EXPECT_FALSE(candidates.empty());
    found += std::ranges::find(candidates, nearest, &CentreIndex::Candidate::id) != candidates.end() ? 1 : 0;
  }
  EXPECT_GE(found, 475);
}

TEST(GraphCentreIndex, TakesAnyNumberOfTheSame) {
  Centres centres(4, 64);
  const std::vector<float> at{1, 2, 3, 4};
  for (int64_t id = 0; id < 3000; ++id) centres.Put(id, at);
  const auto candidates = centres.index.Nearest(Sums::Of(at).value(), 2, 1);
  ASSERT_GE(candidates.size(), 2U);
  EXPECT_EQ(candidates[0].least, 0);
  for (int64_t id = 0; id < 3000; id += 2) centres.Remove(id);
  EXPECT_EQ(centres.index.size(), 1500);
  EXPECT_EQ(centres.index.Nearest(Sums::Of(at).value(), 2, 1)[0].id % 2, 1);
}

}  // namespace
}  // namespace everlong::graph
