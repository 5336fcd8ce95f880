#include "meaning_scan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <numbers>
#include <numeric>

#include "everlong/base/parallel_for.h"
#include "int8.h"

namespace everlong::index {
namespace {

// The fewest pages that a thread takes: about a millisecond. Waking a thread costs more than less would save.
constexpr int64_t kScannedAtOnce = 4096;
// The pages whose vectors are read from a file meanwhile, on each thread.
constexpr int64_t kReadAhead = 512;
constexpr int64_t kAddedAtOnce = 32'768;
constexpr auto kRows = static_cast<size_t>(kMeaningRows);

// Return what a score by signs is multiplied by to be about as large as one by numbers. The length of a vector of n
// numbers is about sqrt(n pi / 2) times the mean of their magnitudes, as of numbers from a normal distribution.
double PerSignScore(int32_t dimension) { return std::sqrt(std::numbers::pi / 2 / dimension); }

// Score pages [n] for one row by their signs, pages of a block that follow each other in one go. alone [n] are zeros.
void ScoreRuns(const MeaningRows& rows, float scale, const MeaningVectors& vectors, std::span<const int32_t> ordinals,
               float* alone) {
  const SignKernel& kernel = BestSignKernel();
  std::vector<float> scores;
  std::vector<int32_t> ends;  // of the pages of a run, among its vectors
  for (size_t at = 0; at < ordinals.size();) {
    SignRun run{};
    ends.clear();
    for (size_t next = at; next < ordinals.size(); ++next) {
      const SignRun page = vectors.Signs(ordinals[next]);
      if (ends.empty()) run = page;
      if (page.tiles == nullptr || page.tiles != run.tiles || (!ends.empty() && page.first != run.last)) break;
      run.last = page.last;
      ends.push_back(page.last - run.first);
    }
    if (ends.empty()) {
      ++at;
      continue;
    }
    scores.resize(static_cast<size_t>(ends.back()));
    kernel.scores(run, rows, scores.data());
    int32_t first = 0;
    for (const int32_t end : ends) {
      float largest = scores[static_cast<size_t>(first)];
      while (++first < end) largest = std::max(largest, scores[static_cast<size_t>(first)]);
      alone[at++] = scale * largest;
    }
  }
}

}  // namespace

MeaningQuery::MeaningQuery(std::span<const float> rows, int32_t dimension) {
  const auto width = static_cast<size_t>(dimension);
  std::vector<Row> rounded;
  for (size_t begin = 0; begin < rows.size(); begin += width) {
    const std::span<const float> row = rows.subspan(begin, width);
    double largest = 0;
    double square = 0;
    for (const float number : row) {
      largest = std::max(largest, std::abs(static_cast<double>(number)));
      square += static_cast<double>(number) * number;
    }
    if (largest == 0) continue;
    Row made{std::vector<int8_t>(width), std::sqrt(square), 0};
    int64_t rounded_square = 0;
    for (size_t i = 0; i < width; ++i) {
      made.codes[i] = FloatToInt8(static_cast<float>(row[i] * (double{kInt8Max} / largest)));
      rounded_square += int64_t{made.codes[i]} * made.codes[i];
    }
    made.scale = made.weight / std::sqrt(static_cast<double>(rounded_square));
    whole_ += made.weight;
    rounded.push_back(std::move(made));
  }
  rows_ = rounded.size();
  blocks_ = BlocksOf(rounded, dimension);
  std::ranges::stable_sort(rounded, std::ranges::greater(), &Row::weight);
  heaviest_ = BlocksOf(std::span(rounded).first(std::min(rounded.size(), kSignRows)), dimension);
}

std::vector<MeaningQuery::Block> MeaningQuery::BlocksOf(std::span<const Row> rows, int32_t dimension) {
  std::vector<Block> blocks;
  for (const Row& row : rows) {
    if (blocks.empty() || blocks.back().rows.count() == kMeaningRows) blocks.push_back({MeaningRows(dimension), {}});
    blocks.back().rows.Add(row.codes);
    blocks.back().scales.push_back(row.scale);
  }
  return blocks;
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

void DropImpossible(double whole, std::span<MeaningScore> scores) {
  const double most = 1.001 * whole;  // rounded
  for (MeaningScore& score : scores) {
    for (float* const of : {&score.alone, &score.with_neighbours}) {
      if (!(std::abs(double{*of}) <= most)) *of = 0;
    }
  }
}

std::vector<MeaningScore> ScoreMeaning(const MeaningQuery& query, const MeaningVectors& vectors,
                                       const MeaningPages& pages, MeaningLevel level) {
  const size_t count = pages.ordinals.size();
  const bool by_signs = level == MeaningLevel::kSigns;
  const MeaningKernel& exact = BestMeaningKernel();
  const SignKernel& signs = BestSignKernel();
  std::vector<MeaningSum> sums(count);
  const std::span<const MeaningQuery::Block> blocks = by_signs ? query.heaviest() : query.blocks();
  const size_t rows = by_signs ? kSignRows : kRows;
  // Of one block of rows at a time.
  const auto maxima = std::make_unique_for_overwrite<float[]>(blocks.empty() ? 0 : count * rows);
  for (const MeaningQuery::Block& block : blocks) {
    ParallelFor(0, std::ssize(sums), kScannedAtOnce, [&](int64_t first, int64_t last) {
      const auto read_soon = [&](int64_t begin) {
        SoonReads soon;
        for (int64_t at = begin; at < std::min(begin + kReadAhead, last); ++at) {
          vectors.ReadSoon(pages.ordinals[static_cast<size_t>(at)], soon);
        }
      };
      if (!by_signs) read_soon(first);
      for (auto at = static_cast<size_t>(first); at < static_cast<size_t>(last); ++at) {
        const int64_t done = static_cast<int64_t>(at) - first;
        if (!by_signs && done % kReadAhead == 0) read_soon(first + done + kReadAhead);
        const int32_t page = pages.ordinals[at];
        float* const of_page = maxima.get() + at * rows;
        if (by_signs) {
          signs.page_maxima(vectors.Signs(page), block.rows, of_page);
        } else {
          exact.page_maxima(vectors.Run(page), block.rows, of_page);
        }
      }
    });
    ParallelFor(0, std::ssize(sums), kAddedAtOnce, [&](int64_t first, int64_t last) {
      for (auto at = static_cast<size_t>(first); at < static_cast<size_t>(last); ++at) {
        const float* const own = maxima.get() + at * rows;
        const float* const before = maxima.get() + static_cast<size_t>(pages.before[at]) * rows;
        const float* const after = maxima.get() + static_cast<size_t>(pages.after[at]) * rows;
        MeaningSum& sum = sums[at];
        for (size_t row = 0; row < block.scales.size(); ++row) {
          sum.alone += block.scales[row] * own[row];
          sum.with_neighbours += block.scales[row] * std::max({own[row], before[row], after[row]});
        }
      }
    });
  }
  const double per_score = by_signs ? PerSignScore(vectors.dimension()) : 1;
  std::vector<MeaningScore> scores(count);
  std::ranges::transform(sums, scores.begin(), [per_score](const MeaningSum& sum) {
    return MeaningScore{static_cast<float>(sum.alone * per_score), static_cast<float>(sum.with_neighbours * per_score)};
  });
  if (!by_signs) DropImpossible(query.whole(), scores);
  return scores;
}

std::vector<float> ScoreAlone(const MeaningQuery& query, const MeaningVectors& vectors,
                              std::span<const int32_t> ordinals, MeaningLevel level) {
  std::vector<float> alone(ordinals.size(), 0.0F);
  const auto blocks = query.heaviest();
  if (level == MeaningLevel::kSigns && blocks.size() == 1 && blocks[0].rows.count() == 1) {
    const auto scale = static_cast<float>(blocks[0].scales[0] * PerSignScore(vectors.dimension()));
    ParallelFor(0, std::ssize(ordinals), kScannedAtOnce, [&](int64_t first, int64_t last) {
      ScoreRuns(blocks[0].rows, scale, vectors,
                ordinals.subspan(static_cast<size_t>(first)).first(static_cast<size_t>(last - first)),
                alone.data() + first);
    });
    return alone;
  }
  MeaningPages pages;
  std::vector<size_t> positions;
  for (size_t at = 0; at < ordinals.size(); ++at) {
    if (!vectors.Has(ordinals[at])) continue;
    pages.ordinals.push_back(ordinals[at]);
    positions.push_back(at);
  }
  pages.before.resize(positions.size());
  std::iota(pages.before.begin(), pages.before.end(), 0);
  pages.after = pages.before;
  const std::vector<MeaningScore> scores = ScoreMeaning(query, vectors, pages, level);
  for (size_t at = 0; at < scores.size(); ++at) alone[positions[at]] = scores[at].alone;
  return alone;
}

MeaningChoice ChooseMeaning(const MeaningPages& pages, std::span<const MeaningScore> coarse, size_t count) {
  std::vector<bool> is_chosen(coarse.size());
  count = std::min(count, coarse.size());
  struct Scored {
    float score;
    int32_t position;
  };
  std::vector<Scored> scored(coarse.size());
  for (float MeaningScore::* const score : {&MeaningScore::alone, &MeaningScore::with_neighbours}) {
    for (size_t at = 0; at < scored.size(); ++at) scored[at] = {coarse[at].*score, static_cast<int32_t>(at)};
    const auto end = scored.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(scored.begin(), end, scored.end(), [](const Scored& a, const Scored& b) {
      return a.score != b.score ? a.score > b.score : a.position < b.position;
    });
    for (auto at = scored.begin(); at != end; ++at) is_chosen[static_cast<size_t>(at->position)] = true;
  }
  std::vector<bool> is_scored = is_chosen;
  for (size_t at = 0; at < is_chosen.size(); ++at) {
    if (is_chosen[at])
      is_scored[static_cast<size_t>(pages.before[at])] = is_scored[static_cast<size_t>(pages.after[at])] = true;
  }
  MeaningChoice choice;
  std::vector<int32_t> now(is_scored.size(), -1);  // positions among what is scored
  for (size_t at = 0; at < is_scored.size(); ++at) {
    if (!is_scored[at]) continue;
    now[at] = static_cast<int32_t>(choice.pages.ordinals.size());
    if (is_chosen[at]) choice.kept.push_back(now[at]);
    choice.pages.ordinals.push_back(pages.ordinals[at]);
  }
  for (size_t at = 0; at < is_scored.size(); ++at) {
    if (!is_scored[at]) continue;
    // Only a page that is not ranked may lack one of these.
    const auto or_own = [&](int32_t beside) {
      const int32_t there = now[static_cast<size_t>(beside)];
      return there < 0 ? now[at] : there;
    };
    choice.pages.before.push_back(or_own(pages.before[at]));
    choice.pages.after.push_back(or_own(pages.after[at]));
  }
  return choice;
}

}  // namespace everlong::index
