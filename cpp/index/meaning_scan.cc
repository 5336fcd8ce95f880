#include "meaning_scan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "everlong/base/parallel_for.h"
#include "int8.h"

namespace everlong::index {
namespace {

// The fewest pages that a thread takes: about a millisecond. Waking a thread costs more than less would save.
constexpr int64_t kScannedAtOnce = 4096;
constexpr int64_t kAddedAtOnce = 32'768;
constexpr auto kRows = static_cast<size_t>(kMeaningRows);

}  // namespace

MeaningQuery::MeaningQuery(std::span<const float> rows, int32_t dimension) {
  const auto width = static_cast<size_t>(dimension);
  std::vector<int8_t> codes(width);
  for (size_t begin = 0; begin < rows.size(); begin += width) {
    const std::span<const float> row = rows.subspan(begin, width);
    double largest = 0;
    double square = 0;
    for (const float number : row) {
      largest = std::max(largest, std::abs(static_cast<double>(number)));
      square += static_cast<double>(number) * number;
    }
    if (largest == 0) continue;
    const double weight = std::sqrt(square);
    int64_t rounded_square = 0;
    for (size_t i = 0; i < width; ++i) {
      codes[i] = FloatToInt8(static_cast<float>(row[i] * (double{kInt8Max} / largest)));
      rounded_square += int64_t{codes[i]} * codes[i];
    }
    if (blocks_.empty() || blocks_.back().rows.count() == kMeaningRows) blocks_.push_back({MeaningRows(dimension), {}});
    blocks_.back().rows.Add(codes);
    blocks_.back().scales.push_back(weight / std::sqrt(static_cast<double>(rounded_square)));
    whole_ += weight;
  }
}

MeaningPages PagesOfMeaning(const MeaningVectors& vectors, const BlockTable& table, const PageFilter& filter) {
  MeaningPages pages;
  std::vector<int32_t>& ordinals = pages.ordinals;
  for (const PageRun& run : filter.runs()) {
    for (int32_t page = run.first; page < run.last; ++page) {
      if (vectors.Has(page)) ordinals.push_back(page);
    }
  }
  // Inside a block, the pages beside are the ordinals beside, so the table is asked only at its ends.
  PageRun block;
  const auto position_of = [&ordinals](int32_t page, size_t expected, size_t own) {
    if (expected < ordinals.size() && ordinals[expected] == page) return static_cast<int32_t>(expected);
    const auto found = std::ranges::lower_bound(ordinals, page);
    const bool there = page >= 0 && found != ordinals.end() && *found == page;
    return there ? static_cast<int32_t>(found - ordinals.begin()) : static_cast<int32_t>(own);
  };
  pages.before.reserve(ordinals.size());
  pages.after.reserve(ordinals.size());
  for (size_t at = 0; at < ordinals.size(); ++at) {
    const int32_t page = ordinals[at];
    if (page >= block.last) block = table.BlockOfPage(page).pages();
    const int32_t before = page > block.first ? page - 1 : table.Previous(page);
    const int32_t after = page + 1 < block.last ? page + 1 : table.Next(page);
    pages.before.push_back(position_of(before, at - 1, at));
    pages.after.push_back(position_of(after, at + 1, at));
  }
  return pages;
}

std::vector<MeaningScore> ScoreMeaning(const MeaningQuery& query, const MeaningVectors& vectors,
                                       const MeaningPages& pages) {
  const size_t count = pages.ordinals.size();
  const MeaningKernel& kernel = BestMeaningKernel();
  std::vector<MeaningSum> sums(count);
  std::vector<float> maxima(query.blocks().empty() ? 0 : count * kRows);  // of one block of rows at a time
  for (const MeaningQuery::Block& block : query.blocks()) {
    ParallelFor(0, std::ssize(sums), kScannedAtOnce, [&](int64_t first, int64_t last) {
      for (auto at = static_cast<size_t>(first); at < static_cast<size_t>(last); ++at) {
        kernel.page_maxima(vectors.Run(pages.ordinals[at]), block.rows, maxima.data() + at * kRows);
      }
    });
    ParallelFor(0, std::ssize(sums), kAddedAtOnce, [&](int64_t first, int64_t last) {
      for (auto at = static_cast<size_t>(first); at < static_cast<size_t>(last); ++at) {
        const float* const own = maxima.data() + at * kRows;
        const float* const before = maxima.data() + static_cast<size_t>(pages.before[at]) * kRows;
        const float* const after = maxima.data() + static_cast<size_t>(pages.after[at]) * kRows;
        MeaningSum& sum = sums[at];
        for (size_t row = 0; row < block.scales.size(); ++row) {
          sum.alone += block.scales[row] * own[row];
          sum.with_neighbours += block.scales[row] * std::max({own[row], before[row], after[row]});
        }
      }
    });
  }
  std::vector<MeaningScore> scores(count);
  std::ranges::transform(sums, scores.begin(), [](const MeaningSum& sum) {
    return MeaningScore{static_cast<float>(sum.alone), static_cast<float>(sum.with_neighbours)};
  });
  return scores;
}

}  // namespace everlong::index
