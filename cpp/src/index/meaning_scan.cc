#include "meaning_scan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "everlong/base/parallel_for.h"
#include "int8.h"

namespace everlong::index {
namespace {

// Pages that a thread takes at least: what takes a millisecond, about. To wake another one costs more than less would.
constexpr int64_t kScannedAtOnce = 4096;
constexpr int64_t kAddedAtOnce = 32'768;
constexpr auto kRows = static_cast<size_t>(kMeaningRows);

// The positions of the pages before and after each, -1 for none that is among them.
struct Neighbours {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

Neighbours NeighboursOf(std::span<const int32_t> pages, const BlockTable& table) {
  Neighbours neighbours{std::vector<int32_t>(pages.size(), -1), std::vector<int32_t>(pages.size(), -1)};
  // Inside a block they are the ordinals beside it, so that the table is asked at its ends alone.
  PageRun block;
  const auto position_of = [&pages](int32_t page, size_t expected) {
    if (expected < pages.size() && pages[expected] == page) return static_cast<int32_t>(expected);
    const auto found = std::ranges::lower_bound(pages, page);
    return page >= 0 && found != pages.end() && *found == page ? static_cast<int32_t>(found - pages.begin()) : -1;
  };
  for (size_t at = 0; at < pages.size(); ++at) {
    const int32_t page = pages[at];
    if (page >= block.last) block = table.BlockOfPage(page).pages();
    const int32_t before = page > block.first ? page - 1 : table.Previous(page);
    const int32_t after = page + 1 < block.last ? page + 1 : table.Next(page);
    neighbours.before[at] = position_of(before, at - 1);
    neighbours.after[at] = position_of(after, at + 1);
  }
  return neighbours;
}

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

MeaningScores ScoreMeaning(const MeaningQuery& query, const MeaningVectors& vectors, const BlockTable& table,
                           const PageFilter& filter) {
  MeaningScores scores;
  for (const PageRun& run : filter.runs()) {
    for (int32_t page = run.first; page < run.last; ++page) {
      if (vectors.Has(page)) scores.pages.push_back(page);
    }
  }
  const size_t count = scores.pages.size();
  const Neighbours neighbours = NeighboursOf(scores.pages, table);
  const MeaningKernel& kernel = BestMeaningKernel();
  std::vector<double> alone(count);
  std::vector<double> with_neighbours(count);
  std::vector<float> maxima(query.blocks().empty() ? 0 : count * kRows);  // of one block of rows at a time
  for (const MeaningQuery::Block& block : query.blocks()) {
    ParallelFor(0, std::ssize(scores.pages), kScannedAtOnce, [&](int64_t first, int64_t last) {
      for (auto at = static_cast<size_t>(first); at < static_cast<size_t>(last); ++at) {
        kernel.page_maxima(vectors.Run(scores.pages[at]), block.rows, maxima.data() + at * kRows);
      }
    });
    ParallelFor(0, std::ssize(scores.pages), kAddedAtOnce, [&](int64_t first, int64_t last) {
      for (auto at = static_cast<size_t>(first); at < static_cast<size_t>(last); ++at) {
        const float* const own = maxima.data() + at * kRows;
        const auto row_of = [&](int32_t neighbour) {
          return neighbour < 0 ? own : maxima.data() + static_cast<size_t>(neighbour) * kRows;
        };
        const float* const before = row_of(neighbours.before[at]);
        const float* const after = row_of(neighbours.after[at]);
        for (size_t row = 0; row < block.scales.size(); ++row) {
          alone[at] += block.scales[row] * own[row];
          with_neighbours[at] += block.scales[row] * std::max({own[row], before[row], after[row]});
        }
      }
    });
  }
  scores.alone.assign(alone.begin(), alone.end());
  scores.with_neighbours.assign(with_neighbours.begin(), with_neighbours.end());
  return scores;
}

}  // namespace everlong::index
