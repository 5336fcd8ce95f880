// The arithmetic of the part "meaning" for one page and a few question tokens, in the best instruction set of this CPU.
// All instruction sets give the same bits: dot products are integers, and then come only one product and maxima.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/kernel_table.h"
#include "everlong/index/meaning_layout.h"

namespace everlong::index {

// Vectors [first, last) of a block's tiles. It is not empty.
struct MeaningVectorRun {
  const uint32_t* tiles = nullptr;
  int32_t quads = 0;
  int32_t first = 0;
  int32_t last = 0;
};

// Question tokens in int8, in the layouts of the kernels.
class MeaningRows {
 public:
  explicit MeaningRows(int32_t dimension);

  // Add the next row [dimension], while there are fewer than kMeaningRows.
  void Add(std::span<const int8_t> codes);

  [[nodiscard]] int32_t count() const { return count_; }
  // [quads][kMeaningRows] words of four int8.
  const uint32_t* quads() const { return quads_.data(); }
  [[nodiscard]] uint32_t quad_count() const { return static_cast<uint32_t>(quads_.size()) / kMeaningRows; }
  // [quads][2][kMeaningRows] words of two int16: numbers 0 and 2, numbers 1 and 3.
  const uint32_t* pairs() const { return pairs_.data(); }
  // [kMeaningRows]: what the 128 in every number of a vector adds to a dot product.
  const int32_t* excess() const { return excess_; }

 private:
  int32_t count_ = 0;
  std::vector<uint32_t> quads_;
  std::vector<uint32_t> pairs_;
  int32_t excess_[kMeaningRows] = {};
};

struct MeaningKernel {
  // maxima [kMeaningRows], of which the first rows.count() count: the largest dot * (1 / length) over the vectors.
  void (*page_maxima)(const MeaningVectorRun& page, const MeaningRows& rows, float* maxima);
};

const KernelTable<MeaningKernel>& SupportedMeaningKernels();
inline const MeaningKernel& BestMeaningKernel() { return SupportedMeaningKernels().kernels[0]; }

}  // namespace everlong::index
