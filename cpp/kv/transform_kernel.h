// The inner loop of the transform codec, in every instruction set that this CPU can run: sums of few rows of a basis.
#pragma once

#include <cstdint>

#include "everlong/base/kernel_table.h"

namespace everlong::kv {

// A matrix lies in panels of this many columns, so that a sum reads its rows one behind the other.
inline constexpr int32_t kPanelColumns = 64;
// Rows of sums that are made together.
inline constexpr int32_t kRowsTogether = 4;

struct TransformKernel {
  const char* name;
  // Decode: out[r][0, 64) = mean[0, 64) + scale[0, 64) * the sum over i of codes[4 i + r], which are two int16 with the
  // lower in the lower half, times rows 2 pairs[i] and 2 pairs[i] + 1 of `panel`; fused, for r below 4. Of the panel,
  // columns lie one behind the other, and of each its numbers in both rows. No sum may leave int32.
  void (*add_pairs)(const int16_t* panel, const int32_t* pairs, const int32_t* codes, int64_t count, const float* scale,
                    const float* mean, float* out, int64_t stride);
  // Encode: out[r][0, 64) = begin[0, 64) + the sum over i of factors[4 i + r] * panel[64 rows[i]], fused, in order of
  // i; for r below 4. Row r of `out` begins at out + r * stride.
  void (*add_rows)(const float* panel, const int32_t* rows, const float* factors, int64_t count, const float* begin,
                   float* out, int64_t stride);
};

const KernelTable<TransformKernel>& SupportedTransformKernels();
inline const TransformKernel& BestTransformKernel() { return SupportedTransformKernels().kernels[0]; }

}  // namespace everlong::kv
