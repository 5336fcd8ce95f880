// The arithmetic of a vector search, in the best instruction set of this CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "everlong/base/kernel_table.h"

namespace everlong::index {

// Rows and queries are padded with zeros to a multiple of this, the widest vector.
inline constexpr int32_t kWidthMultiple = 16;

struct StoredRows {
  const std::byte* bytes = nullptr;  // of the first row
  int64_t stride = 0;                // bytes from row to row
  int64_t count = 0;
  int64_t width = 0;              // elements a row, a multiple of kWidthMultiple
  const float* scales = nullptr;  // [count]; nullptr: 1
};

struct VectorKernel {
  // queries [query_count, width] -> scores [query_count, rows.count]; larger is better.
  using Score = void (*)(const StoredRows& rows, const float* queries, int64_t query_count, float* scores);
  Score dot[4];       // by VectorStorage: the inner product
  Score distance[4];  // minus the squared distance
  // Return a distance of two fp32 rows, less for nearer ones. hnswlib calls it: the last argument points at the width.
  using Pair = float (*)(const void* a, const void* b, const void* width);
  Pair negative_dot;
  Pair squared_distance;
};

const KernelTable<VectorKernel>& SupportedVectorKernels();
inline const VectorKernel& BestVectorKernel() { return SupportedVectorKernels().kernels[0]; }

}  // namespace everlong::index
