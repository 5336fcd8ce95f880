// The arithmetic of HeadsIndex::Scored for one page and one block of query rows, in the best instruction set of this
// CPU. Scores are in powers of two: rows were multiplied by log2(e) / sqrt(D), so exp(x) is 2^score.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/kernel_table.h"
#include "everlong/index/key_layout.h"

namespace everlong::index {

struct PageKeys {
  const uint32_t* tiles = nullptr;  // [tiles][pairs][kTileTokens], see key_layout.h
  int32_t pairs = 0;                // of dimensions: half of D, rounded up
  int32_t first_token = 0;          // [first_token, end_token) are scored; not empty
  int32_t end_token = 0;
};

// Keys of a page in bytes, see key_layout.h.
struct ByteKeys {
  const uint32_t* scales = nullptr;
  const uint32_t* tiles = nullptr;  // [tile_count][quads][kTileTokens]
  int32_t tile_count = 0;
  int32_t pairs = 0;
};

// kBlockRows queries, rounded to bf16 as keys are, as in attention in bf16. They are kept twice, as kernels need them.
class QueryRows {
 public:
  explicit QueryRows(int32_t head_dim);

  // Put a query [D] into row `row`. The other rows stay as they are, zeros at first.
  void Set(int32_t row, std::span<const float> query);
  [[nodiscard]] const uint32_t* pairs() const { return pairs_.data(); }  // [pairs][kBlockRows], as tiles have them
  [[nodiscard]] const float* values() const { return values_.data(); }   // [2 * pairs][kBlockRows]

 private:
  std::vector<uint32_t> pairs_;
  std::vector<float> values_;
};

struct HeadsKernel {
  // maxima [kBlockRows]: the largest score of a row in the page.
  void (*page_maxima)(const PageKeys& page, const QueryRows& rows, float* maxima);
  // sums [kBlockRows]: of 2^(score - reference), reference [kBlockRows], to 3e-6 relative. A score more than 126 below
  // its reference counts nothing. Scores are at most 100 above it.
  void (*page_sums)(const PageKeys& page, const QueryRows& rows, const float* reference, float* sums);
  // powers [kBlockRows]: 2^(score - reference), as in page_sums. scores [kBlockRows].
  void (*powers)(const float* scores, const float* reference, float* powers);
  // tiles [tile_count][pairs][kTileTokens] of PageKeys: the result of KeyTiles::Decode of int8 and of e4m3, to the bit.
  void (*expand_int8)(const ByteKeys& keys, uint32_t* tiles);
  void (*expand_e4m3)(const ByteKeys& keys, uint32_t* tiles);
};

const KernelTable<HeadsKernel>& SupportedHeadsKernels();
inline const HeadsKernel& BestHeadsKernel() { return SupportedHeadsKernels().kernels[0]; }
// Expand keys that are kept in bytes, as expand_int8 or expand_e4m3.
inline void ExpandBytes(KeyStorage storage, const ByteKeys& keys, uint32_t* tiles) {
  (storage == KeyStorage::kInt8 ? BestHeadsKernel().expand_int8 : BestHeadsKernel().expand_e4m3)(keys, tiles);
}

}  // namespace everlong::index
