// Exact search over stored rows, for the indexes that have such rows: blocked top-k, then the winners anew in fp64.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "everlong/index/vector_index.h"
#include "vector_kernel.h"

namespace everlong::index {

inline constexpr int64_t kNoId = -1;
// No score of such elements overflows fp32, in any dimension that there is.
inline constexpr float kLargestElement = 0x1p48F;

// The width of a row of `dimension` elements once it is filled up with zeros.
inline int64_t PaddedWidth(int32_t dimension) {
  return (int64_t{dimension} + kWidthMultiple - 1) / kWidthMultiple * kWidthMultiple;
}

// kInvalidArgument unless vectors [count, dimension] has that size and nothing beyond kLargestElement.
Status CheckVectors(std::span<const float> vectors, int64_t count, int32_t dimension, const char* name);

// What a search refuses: k < 1, and queries that are not [n, dimension] or hold what CheckVectors does not take.
Status CheckSearch(std::span<const float> queries, int32_t k, int32_t dimension);

// vectors [n, dimension] -> [n, PaddedWidth], of unit length for the cosine (a zero vector stays zero).
std::vector<float> PadVectors(std::span<const float> vectors, int32_t dimension, Metric metric);

struct ScannedRows {
  StoredRows stored;             // `count` rows
  const int64_t* ids = nullptr;  // [count]; kNoId: nothing is stored there
  VectorStorage storage = VectorStorage::kFp32;
  Metric metric = Metric::kCosine;
};

// Runs [first, last) of rows that hold an allowed id, none longer than a block of the scan; and how many rows that is.
struct RowRuns {
  std::vector<std::pair<int32_t, int32_t>> runs;
  int64_t rows = 0;
};
RowRuns AllowedRuns(std::span<const int64_t> ids, const IdFilter& filter);

// queries [n, width], padded.
std::vector<VectorHits> ScanRows(const ScannedRows& rows, const RowRuns& runs, std::span<const float> queries,
                                 int32_t k);

// The score in fp64 of row `row` for one padded query.
float ExactScore(const ScannedRows& rows, int64_t row, const float* query);
// The same of several rows, of fp32 rows several at once: each is summed in its own order, to the same bits.
std::vector<float> ExactScores(const ScannedRows& rows, std::span<const int32_t> which, const float* query);

}  // namespace everlong::index
