// One scan of the part "meaning" on a device, with pointers into its memory. For host C++, hipcc and nvcc.
#pragma once

#include <cstdint>

#include "everlong/index/meaning_layout.h"

namespace everlong::index {

// A page to score: vectors [first, last) of its block. It is not empty.
struct MeaningPage {
  const uint32_t* tiles;  // of its block (meaning_layout.h), at an address divisible by 16
  int32_t first;
  int32_t last;
  // Positions, among the job's pages, of the pages beside it; its own position where there is none.
  int32_t before;
  int32_t after;
};

// Scores of a page alone, and with the pages beside it: the sum over a question's rows of scale * largest product.
struct MeaningScore {
  float alone;
  float with_neighbours;
};

// The same before rounding: summed in fp64, row after row, as on the host.
struct MeaningSum {
  double alone;
  double with_neighbours;
};

// Longer vectors are scored on the host: a block of their rows would not fit in the memory that threads share.
inline constexpr int32_t kMostJobQuads = 512;

// Rows come in blocks of kMeaningRows. A long question has several jobs, which hand on their sums.
struct MeaningJob {
  int32_t quads = 0;                   // 1 to kMostJobQuads
  const MeaningPage* pages = nullptr;  // [page_count]
  int64_t page_count = 0;
  int64_t blocks = 0;
  const uint32_t* rows = nullptr;  // [blocks][quads][kMeaningRows] words of four int8, at an address divisible by 16
  const double* scales = nullptr;  // [blocks][kMeaningRows]; 0 for a row of padding
  bool is_first = true;            // of the question's jobs
  float* maxima = nullptr;         // workspace [blocks][page_count][kMeaningRows], at an address divisible by 16
  MeaningSum* sums = nullptr;      // output [page_count]: the sums of the jobs so far
  MeaningScore* scores = nullptr;  // output [page_count]
};

}  // namespace everlong::index
