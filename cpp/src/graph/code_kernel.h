// How far one coded vector is from many, in the best instruction set of this CPU. Whole numbers: every instruction set
// gives the same.
#pragma once

#include <cstdint>

#include "everlong/base/kernel_table.h"

namespace everlong::graph {

// Rows lie in groups of so many. Of a group, two numbers of every row lie beside each other, then the next two.
inline constexpr int64_t kGroupRows = 16;

struct CodedQuery {
  const int16_t* values = nullptr;  // [width]
  int32_t square = 0;               // of its length
  int32_t limit = INT32_MAX;        // the squared distance up to which a row is near
};

struct CodeKernel {
  // groups [group_count, width / 2, kGroupRows, 2] and the squared lengths of their rows [group_count * kGroupRows] ->
  // squared distances [group_count * kGroupRows], and of every group a bit for each row that is near. The width is
  // even, and no distance of two rows is beyond int32.
  using Distances = void (*)(const int8_t* groups, const int32_t* squares, int64_t group_count, int64_t width,
                             const CodedQuery& query, int32_t* distances, uint16_t* near);
  Distances distances;
};

const KernelTable<CodeKernel>& SupportedCodeKernels();
inline const CodeKernel& BestCodeKernel() { return SupportedCodeKernels().kernels[0]; }

}  // namespace everlong::graph
