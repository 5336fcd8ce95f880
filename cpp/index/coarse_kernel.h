// The arithmetic of CoarseKeys for one page and one block of query rows, in the best instruction set of this CPU. All
// instruction sets give the same scores to the bit: dot products are integers, and then comes only one product.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/kernel_table.h"
#include "everlong/index/key_layout.h"

namespace everlong::index {

// A word holds the codes of eight axes of a token, four bits each: axes 0 to 3 are the lower halves of its bytes, from
// the lowest byte, and axes 4 to 7 the upper halves.
inline constexpr int32_t kWordAxes = 8;
inline constexpr int32_t kLargestCode = 15;

// Codes of one key head of a page.
struct CoarsePage {
  const uint32_t* tiles = nullptr;  // [tiles][words][kTileTokens]
  int32_t words = 0;                // a token
  int32_t first_token = 0;          // [first_token, end_token) are scored; not empty
  int32_t end_token = 0;
};

// kBlockRows queries in int8, each with a scale.
class CoarseRows {
 public:
  explicit CoarseRows(int32_t axes);  // a multiple of kWordAxes

  // Put a query [axes] into row `row`: what a code of 1 adds to a score. The other rows stay, zeros at first. So does
  // this one, if a number is not finite.
  void Set(int32_t row, std::span<const float> query);
  // Return how many rows there are up to the last that Set had. Those behind score 0.
  [[nodiscard]] int32_t count() const { return count_; }
  // [2 * words][kBlockRows] words of four int8.
  [[nodiscard]] const uint32_t* quads() const { return quads_.data(); }
  [[nodiscard]] const float* scales() const { return scales_; }  // [kBlockRows]
  // Return what no score of a row is above.
  [[nodiscard]] double bound(int32_t row) const { return bounds_[row]; }

 private:
  std::vector<uint32_t> quads_;
  float scales_[kBlockRows] = {};
  double bounds_[kBlockRows] = {};
  int32_t count_ = 0;
};

struct CoarseKernel {
  // maxima [kBlockRows]: a row's scale times the largest dot product with a token. Few rows take less time.
  void (*page_maxima)(const CoarsePage& page, const CoarseRows& rows, float* maxima);
  // out [words][kTileTokens]: the codes of a tile of bf16 keys [pairs][kTileTokens] (key_layout.h). A code is
  // k . axis + offset, cut down to an integer of 0 to kLargestCode. axes [2 * pairs][words * kWordAxes], offsets
  // [words * kWordAxes].
  void (*encode)(const uint32_t* tile, int32_t pairs, const float* axes, const float* offsets, int32_t words,
                 uint32_t* out);
};

const KernelTable<CoarseKernel>& SupportedCoarseKernels();
inline const CoarseKernel& BestCoarseKernel() { return SupportedCoarseKernels().kernels[0]; }

}  // namespace everlong::index
