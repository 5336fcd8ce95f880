// The distances of one coded vector from many, in the best instruction set of this CPU. They are whole numbers, so
// every instruction set gives the same.
#pragma once

#include <cstdint>

#include "everlong/base/kernel_table.h"

namespace everlong::graph {

// Rows lie in groups of this size. In a group, two numbers of every row lie side by side, then the next two.
inline constexpr int64_t kGroupRows = 16;

struct CodedQuery {
  const int16_t* values = nullptr;  // [width]
  int32_t square = 0;               // of its length
  int32_t limit = INT32_MAX;        // the largest squared distance of a near row
};

struct CodeKernel {
  // Input: groups [group_count, width / 2, kGroupRows, 2] and the squared lengths of their rows [group_count *
  // kGroupRows]. Output: squared distances [group_count * kGroupRows], and for every group a bit for each row that is
  // near. The width is even, and no distance of two rows is beyond int32.
  using Distances = void (*)(const int8_t* groups, const int32_t* squares, int64_t group_count, int64_t width,
                             const CodedQuery& query, int32_t* distances, uint16_t* near);
  Distances distances;
};

const KernelTable<CodeKernel>& SupportedCodeKernels();
inline const CodeKernel& BestCodeKernel() { return SupportedCodeKernels().kernels[0]; }

}  // namespace everlong::graph
