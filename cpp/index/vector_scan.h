// Exact search over stored rows, for indexes that have such rows: top-k by blocks, then the winners again in fp64.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "everlong/index/vector_index.h"
#include "vector_kernel.h"

namespace everlong::index {

inline constexpr int64_t kNoId = -1;
// No score of such elements overflows fp32, in any allowed dimension.
inline constexpr float kLargestElement = 0x1p48F;

// Return the width of a row of `dimension` elements, padded with zeros.
inline int64_t PaddedWidth(int32_t dimension) {
  return (int64_t{dimension} + kWidthMultiple - 1) / kWidthMultiple * kWidthMultiple;
}

// kInvalidArgument unless vectors [count, dimension] have that size and nothing beyond kLargestElement.
Status CheckVectors(std::span<const float> vectors, int64_t count, int32_t dimension, const char* name);

// Refuse ids that an index cannot add: kInvalidArgument for one below 0; kAlreadyExists for one that is named twice, or
// that is in the index.
Status CheckNewIds(std::span<const int64_t> ids, const std::function<bool(int64_t)>& is_here);

// kInvalidArgument for k < 1, and for queries that are not [n, dimension] or that CheckVectors refuses.
Status CheckSearch(std::span<const float> queries, int32_t k, int32_t dimension);

// Return vectors [n, dimension] as [n, PaddedWidth], of unit length for the cosine. A zero vector stays zero.
std::vector<float> PadVectors(std::span<const float> vectors, int32_t dimension, Metric metric);

struct ScannedRows {
  StoredRows stored;                          // `count` rows
  const int64_t* ids = nullptr;               // [count]; kNoId: nothing is stored there
  std::function<int32_t(int64_t id)> row_of;  // -1: it is not here
  VectorStorage storage = VectorStorage::kFp32;
  Metric metric = Metric::kCosine;
};

// Return number `i` of row `row`, without its scale.
float StoredNumber(const ScannedRows& rows, int64_t row, int64_t i);

// Runs [first, last) of rows that hold an allowed id, none longer than a block of the scan, and their number of rows.
struct RowRuns {
  std::vector<std::pair<int32_t, int32_t>> runs;
  int64_t rows = 0;
  bool whole = true;  // all of them are in it
};
// With `enough` they end soon after it returns true for so many rows; it then does for more, too.
RowRuns AllowedRuns(const ScannedRows& rows, const IdFilter& filter,
                    const std::function<bool(int64_t allowed)>& enough = {});

// Scan for padded queries [n, width].
std::vector<VectorHits> ScanRows(const ScannedRows& rows, const RowRuns& runs, std::span<const float> queries,
                                 int32_t k);

// The rows of an approximate index, of which `live` hold a vector.
struct ApproximateRows {
  ScannedRows scanned;
  int64_t live = 0;
  int32_t exact_below = 0;  // without a filter so many are counted, to scan them
};
// Search an approximate index. Rows are scanned where a filter allows so few that this is cheaper. Elsewhere
// `search(hits)` fills the hits of every query. A scan replaces those of a query that it found too few for.
Result<std::vector<VectorHits>> SearchOrScan(const ApproximateRows& rows, const IdFilter& filter,
                                             std::span<const float> queries, int32_t k,
                                             const std::function<bool(int64_t allowed)>& scan_is_cheaper,
                                             const std::function<Status(std::span<VectorHits> hits)>& search);

// Return the score in fp64 of row `row` for one padded query.
float ExactScore(const ScannedRows& rows, int64_t row, const float* query);
// Do the same for several rows, fp32 rows several at once. Each is summed in its own order, to the same bits.
std::vector<float> ExactScores(const ScannedRows& rows, std::span<const int32_t> which, const float* query);

}  // namespace everlong::index
