#include "vector_scan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>

#include "best_candidates.h"
#include "best_first.h"
#include "everlong/base/element.h"
#include "everlong/base/parallel_for.h"

namespace everlong::index {
namespace {

// Rows scored before their scores are looked at, so that they stay in the first cache.
constexpr int32_t kBlockOfRows = 256;
constexpr int64_t kBlockOfQueries = 16;
// Candidates kept beyond k, so that fp32 rounding does not decide which are the k best.
constexpr int32_t kSpare = 16;

// Inline, so that ExactScore chooses the storage once and not for every number.
[[gnu::always_inline]] inline float NumberAt(const ScannedRows& rows, const std::byte* row, int64_t i) {
  float value = 0;
  uint16_t bits = 0;
  switch (rows.storage) {
    case VectorStorage::kFp32:
      std::memcpy(&value, row + i * 4, sizeof(value));
      return value;
    case VectorStorage::kBf16:
      std::memcpy(&bits, row + i * 2, sizeof(bits));
      return BFloat16ToFloat(bits);
    case VectorStorage::kInt8:
      return static_cast<int8_t>(row[i]);
    case VectorStorage::kE4M3:
      return E4M3ToFloat(static_cast<uint8_t>(row[i]));
  }
  return value;
}

}  // namespace

Status CheckVectors(std::span<const float> vectors, int64_t count, int32_t dimension, const char* name) {
  if (std::ssize(vectors) != count * dimension) {
    return InvalidArgumentError(std::string(name) + " has " + std::to_string(vectors.size()) + " numbers, expected " +
                                std::to_string(count) + " x " + std::to_string(dimension));
  }
  // False for a NaN too.
  const auto bad = std::ranges::find_if_not(vectors, [](float value) { return std::abs(value) <= kLargestElement; });
  if (bad != vectors.end()) {
    return InvalidArgumentError(std::string(name) + " holds " + std::to_string(*bad) +
                                ", expected a number between -2^48 and 2^48");
  }
  return OkStatus();
}

Status CheckNewIds(std::span<const int64_t> ids, const std::function<bool(int64_t)>& is_here) {
  std::vector<int64_t> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  if (!sorted.empty() && sorted.front() < 0) {
    return InvalidArgumentError("id is " + std::to_string(sorted.front()) + ", expected 0 or more");
  }
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) return AlreadyExistsError("id " + std::to_string(*twice) + " is named twice");
  const auto here = std::ranges::find_if(ids, is_here);
  return here == ids.end() ? OkStatus() : AlreadyExistsError("id " + std::to_string(*here) + " is in the index");
}

Status CheckSearch(std::span<const float> queries, int32_t k, int32_t dimension) {
  if (k < 1) return InvalidArgumentError("k is " + std::to_string(k) + ", expected at least 1");
  return CheckVectors(queries, std::ssize(queries) / dimension, dimension, "queries");
}

std::vector<float> PadVectors(std::span<const float> vectors, int32_t dimension, Metric metric) {
  const auto width = static_cast<size_t>(PaddedWidth(dimension));
  const auto length = static_cast<size_t>(dimension);
  std::vector<float> padded(vectors.size() / length * width);
  for (size_t row = 0; row < vectors.size() / length; ++row) {
    const float* const from = vectors.data() + row * length;
    double scale = 1;
    if (metric == Metric::kCosine) {
      double square = 0;
      for (size_t i = 0; i < length; ++i) square += static_cast<double>(from[i]) * from[i];
      scale = square > 0 ? 1 / std::sqrt(square) : 0;
    }
    for (size_t i = 0; i < length; ++i) padded[row * width + i] = static_cast<float>(from[i] * scale);
  }
  return padded;
}

float StoredNumber(const ScannedRows& rows, int64_t row, int64_t i) {
  return NumberAt(rows, rows.stored.bytes + row * rows.stored.stride, i);
}

RowRuns AllowedRuns(const ScannedRows& rows, const IdFilter& filter,
                    const std::function<bool(int64_t allowed)>& enough) {
  constexpr int64_t kAskedAfter = 256;  // rows
  RowRuns allowed;
  // Return whether they go on.
  const auto add = [&](int32_t row) {
    ++allowed.rows;
    auto& runs = allowed.runs;
    if (!runs.empty() && runs.back().second == row && row - runs.back().first < kBlockOfRows) {
      runs.back().second = row + 1;
    } else {
      runs.emplace_back(row, row + 1);
    }
    allowed.whole = !(enough && allowed.rows % kAskedAfter == 0 && enough(allowed.rows));
    return allowed.whole;
  };
  if (filter.few() != nullptr && rows.row_of) {
    std::vector<int32_t> few;
    for (const int64_t id : *filter.few()) {
      if (const int32_t row = rows.row_of(id); row >= 0) few.push_back(row);
    }
    std::ranges::sort(few);
    for (const int32_t row : few) {
      if (!add(row)) break;
    }
    return allowed;
  }
  const auto count = static_cast<int32_t>(rows.stored.count);
  for (int32_t row = 0; row < count; ++row) {
    if (rows.ids[row] != kNoId && filter.Allows(rows.ids[row]) && !add(row)) break;
  }
  return allowed;
}

float ExactScore(const ScannedRows& rows, int64_t row, const float* query) {
  const std::byte* const bytes = rows.stored.bytes + row * rows.stored.stride;
  const double scale = rows.stored.scales == nullptr ? 1 : rows.stored.scales[row];
  double score = 0;
  for (int64_t i = 0; i < rows.stored.width; ++i) {
    const double element = double{NumberAt(rows, bytes, i)} * scale;
    if (rows.metric == Metric::kL2) {
      score -= (query[i] - element) * (query[i] - element);
    } else {
      score += query[i] * element;
    }
  }
  return static_cast<float>(score);
}

std::vector<float> ExactScores(const ScannedRows& rows, std::span<const int32_t> which, const float* query) {
  constexpr size_t kTogether = 8;  // a sum waits for its last addend; meanwhile the others go on
  std::vector<float> scores(which.size());
  size_t at = 0;
  if (rows.storage == VectorStorage::kFp32 && rows.metric != Metric::kL2 && rows.stored.scales == nullptr) {
    for (; at + kTogether <= which.size(); at += kTogether) {
      std::array<const float*, kTogether> of{};
      for (size_t i = 0; i < kTogether; ++i) {
        of[i] = reinterpret_cast<const float*>(rows.stored.bytes + which[at + i] * rows.stored.stride);
      }
      std::array<double, kTogether> sums{};
      for (int64_t element = 0; element < rows.stored.width; ++element) {
        const double asked = query[element];
        for (size_t i = 0; i < kTogether; ++i) sums[i] += asked * double{of[i][element]};
      }
      for (size_t i = 0; i < kTogether; ++i) scores[at + i] = static_cast<float>(sums[i]);
    }
  }
  for (; at < which.size(); ++at) scores[at] = ExactScore(rows, which[at], query);
  return scores;
}

std::vector<VectorHits> ScanRows(const ScannedRows& rows, const RowRuns& runs, std::span<const float> queries,
                                 int32_t k) {
  const int64_t width = rows.stored.width;
  const int64_t query_count = std::ssize(queries) / width;
  const auto capacity = static_cast<size_t>(std::min(int64_t{k} + kSpare, runs.rows));
  std::vector<VectorHits> hits(static_cast<size_t>(query_count));
  if (capacity == 0) return hits;
  const VectorKernel& kernel = BestVectorKernel();
  const auto storage = static_cast<size_t>(rows.storage);
  const VectorKernel::Score score = rows.metric == Metric::kL2 ? kernel.distance[storage] : kernel.dot[storage];

  std::vector<BestCandidates> best(static_cast<size_t>(query_count), BestCandidates(capacity));
  std::mutex merging;
  ParallelFor(0, std::ssize(runs.runs), 16, [&](int64_t first_run, int64_t last_run) {
    std::vector<BestCandidates> of_part(static_cast<size_t>(query_count), BestCandidates(capacity));
    std::vector<float> scores(static_cast<size_t>(kBlockOfRows * kBlockOfQueries));
    for (int64_t run = first_run; run < last_run; ++run) {
      const auto [first, last] = runs.runs[static_cast<size_t>(run)];
      StoredRows block = rows.stored;
      block.bytes += first * rows.stored.stride;
      if (block.scales != nullptr) block.scales += first;
      block.count = last - first;
      for (int64_t query = 0; query < query_count; query += kBlockOfQueries) {
        const int64_t count = std::min(kBlockOfQueries, query_count - query);
        score(block, queries.data() + query * width, count, scores.data());
        for (int64_t i = 0; i < count; ++i) {
          BestCandidates& candidates = of_part[static_cast<size_t>(query + i)];
          const float* const of_query = scores.data() + i * block.count;
          float threshold = candidates.Threshold();
          for (int32_t row = 0; row < last - first; ++row) {
            if (of_query[row] < threshold) continue;
            candidates.Offer({rows.ids[first + row], of_query[row], first + row});
            threshold = candidates.Threshold();
          }
        }
      }
    }
    // Candidates are ordered by score and id, so the outcome does not depend on how threads share the rows.
    const std::scoped_lock lock(merging);
    for (size_t query = 0; query < of_part.size(); ++query) {
      for (const Candidate& candidate : of_part[query].all()) best[query].Offer(candidate);
    }
  });

  ParallelFor(0, query_count, 16, [&](int64_t first, int64_t last) {
    for (int64_t query = first; query < last; ++query) {
      VectorHits& of_query = hits[static_cast<size_t>(query)];
      for (const Candidate& candidate : best[static_cast<size_t>(query)].all()) {
        of_query.push_back({candidate.id, ExactScore(rows, candidate.row, queries.data() + query * width)});
      }
      KeepBestFirst(of_query, static_cast<size_t>(k), [](const VectorHit& hit) { return hit.id; });
    }
  });
  return hits;
}

Result<std::vector<VectorHits>> SearchOrScan(const ApproximateRows& rows, const IdFilter& filter,
                                             std::span<const float> queries, int32_t k,
                                             const std::function<bool(int64_t allowed)>& scan_is_cheaper,
                                             const std::function<Status(std::span<VectorHits> hits)>& search) {
  RowRuns runs;
  bool known = false;  // which rows are allowed
  if (!filter.all() || rows.live <= rows.exact_below) {
    runs = AllowedRuns(rows.scanned, filter, [&](int64_t allowed) { return !scan_is_cheaper(allowed); });
    known = runs.whole;
    if (known && scan_is_cheaper(runs.rows)) return ScanRows(rows.scanned, runs, queries, k);
  }
  const auto width = static_cast<size_t>(rows.scanned.stored.width);
  std::vector<VectorHits> hits(queries.size() / width);
  EVERLONG_RETURN_IF_ERROR(search(hits));
  const auto wanted = static_cast<size_t>(std::min<int64_t>(k, known ? runs.rows : rows.live));
  for (size_t query = 0; query < hits.size(); ++query) {
    if (hits[query].size() >= wanted) continue;
    if (!std::exchange(known, true)) runs = AllowedRuns(rows.scanned, filter);
    hits[query] = std::move(ScanRows(rows.scanned, runs, queries.subspan(query * width, width), k)[0]);
  }
  return hits;
}

}  // namespace everlong::index
