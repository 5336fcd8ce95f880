// The first level of the parts "meaning" and "encoder": the signs of a vector's numbers stand for the vector. The sum
// of a question's numbers, each with the sign of the vector's, is about as large as their dot product over the vector's
// length. All instruction sets give the same scores to the bit: they are integers.
#pragma once

#include <cstdint>

#include "everlong/base/kernel_table.h"
#include "everlong/index/meaning_layout.h"
#include "meaning_kernel.h"

namespace everlong::index {

// Return the words of a vector's signs. Bit 8 i + j of a word is set where number i of its quad j (meaning_layout.h) is
// 0 or more; a word has eight quads. None is set for a vector of zeros, which scores 0. So does, by its signs, one
// whose numbers are all below 0.
constexpr int32_t SignWordsOf(int32_t quads) { return (quads + 7) / 8; }

// The signs of vectors [first, last) of a block. It is not empty.
struct SignRun {
  const uint32_t* tiles = nullptr;  // [tiles][words][kTileVectors]
  int32_t words = 0;                // of a vector
  int32_t first = 0;
  int32_t last = 0;
};

struct SignKernel {
  // maxima [rows.count(), filled up to a multiple of 8]: a row's largest score over the vectors.
  void (*page_maxima)(const SignRun& page, const MeaningRows& rows, float* maxima);
  // scores [last - first]: what each of the vectors scores for the first row. For one row it takes a fraction of the
  // time.
  void (*scores)(const SignRun& run, const MeaningRows& rows, float* scores);
};

const KernelTable<SignKernel>& SupportedSignKernels();
inline const SignKernel& BestSignKernel() { return SupportedSignKernels().kernels[0]; }

}  // namespace everlong::index
