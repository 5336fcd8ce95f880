// The arithmetic of HeadsIndex::Mass for one page and one block of query rows, in the best instruction set of this CPU.
// Scores are in powers of two: rows come multiplied by log2(e) / sqrt(D), and exp(x) is 2^score.
#pragma once

#include <cstdint>

namespace everlong::index {

inline constexpr int32_t kBlockRows = 8;
// Rows of statistics come in multiples of this, the widest vector; filled up with weight 0.
inline constexpr int32_t kRowMultiple = 16;

struct PageKeys {
  const uint32_t* tiles = nullptr;  // [tile_count][head_dim][kTileWords], see key_tiles.h
  int32_t tile_count = 0;
  int32_t head_dim = 0;
  int32_t first_token = 0;  // [first_token, end_token) are scored; not empty
  int32_t end_token = 0;
};

struct HeadsKernel {
  // maxima [kBlockRows]: the largest score of a row in the page; sums [kBlockRows]: of 2^(score - maximum).
  // rows [head_dim][kBlockRows]; scores: scratch of kBlockRows * tile_count * kTileTokens.
  void (*score_page)(const PageKeys& page, const float* rows, float* scores, float* maxima, float* sums);
  // The same statistics over pages: maxima and sums [pages][row_count] -> [row_count]. pages >= 1.
  void (*combine_pages)(const float* maxima, const float* sums, int64_t pages, int64_t row_count, float* maximum,
                        float* sum);
  // Sum over rows of factor * sums * 2^(maxima - maximum), of one page.
  float (*page_mass)(const float* maxima, const float* sums, int64_t row_count, const float* maximum,
                     const float* factor);
};

// Every one that this CPU can run, the best first: tests compare them.
struct HeadsKernels {
  HeadsKernel kernels[3];
  int32_t count = 0;
};
const HeadsKernels& SupportedHeadsKernels();
inline const HeadsKernel& BestHeadsKernel() { return SupportedHeadsKernels().kernels[0]; }

}  // namespace everlong::index
