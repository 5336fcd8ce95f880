// How a shift is cut into steps that no two threads can disturb each other in, and what one thread of a step does. Host
// code compiles it too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "divisor.h"
#include "everlong/base/dtype.h"
#include "everlong/kv/element.h"
#include "rotation_kernels.h"
#include "shift_kernels.h"

namespace everlong::hip {

// Rows that one step moves, [source, source + count) to [target, target + count). The rows of a step are read and
// written in no order: they must not overlap, or lie at one place, or go through the workspace. Steps run one after the
// other, those that free the place of later ones first (as memmove does).
struct ShiftStep {
  int64_t source = 0;
  int64_t target = 0;
  int64_t count = 0;
  bool staged = false;  // through the workspace: all rows are read before any is written
};

inline constexpr int64_t kFewestDirectRows = 64;  // below it, steps are too small to fill a GPU
inline constexpr int64_t kStagedRows = 512;

inline std::vector<ShiftStep> ShiftSteps(const SlotShift& shift) {
  const int64_t distance = std::abs(shift.source - shift.target);
  const bool disjoint = distance == 0 || distance >= shift.count;
  const bool staged = !disjoint && distance < kFewestDirectRows;
  const int64_t most = disjoint ? shift.count : (staged ? kStagedRows : distance);
  std::vector<ShiftStep> steps;
  for (int64_t first = 0; first < shift.count; first += most) {
    const int64_t count = std::min(most, shift.count - first);
    const int64_t row = shift.target < shift.source ? first : shift.count - first - count;
    steps.push_back({shift.source + row, shift.target + row, count, staged});
  }
  return steps;
}

inline int64_t StagedRows(const SlotShift& shift) {
  int64_t rows = 0;
  for (const ShiftStep& step : ShiftSteps(shift)) rows = std::max(rows, step.staged ? step.count : 0);
  return rows;
}

// `count` rows of every layer and head of k or v, from slot `source` of `base` to slot `target` of it.
inline HeadRows SlotRows(const kv::FrameKv& frame, void* base, int64_t source, int64_t target, int64_t count) {
  const auto row_bytes = static_cast<int64_t>(DTypeSize(frame.dtype)) * frame.head_dim;
  auto* bytes = static_cast<char*>(base);
  const RowStrides strides{frame.layer_stride, frame.head_stride, frame.head_dim};
  return {bytes + source * row_bytes,
          bytes + target * row_bytes,
          frame.dtype,
          frame.layers,
          frame.kv_heads,
          count,
          frame.head_dim,
          strides,
          strides};
}

// The same rows between frame and workspace, which holds them contiguously.
inline HeadRows ToWorkspace(HeadRows rows, void* workspace) {
  rows.out = workspace;
  rows.out_strides = {rows.heads * rows.tokens * rows.head_dim, rows.tokens * rows.head_dim, rows.head_dim};
  return rows;
}
inline HeadRows FromWorkspace(HeadRows rows, const void* workspace) {
  rows.in = workspace;
  rows.in_strides = {rows.heads * rows.tokens * rows.head_dim, rows.tokens * rows.head_dim, rows.head_dim};
  return rows;
}

// Phase number `index` of the [count, half] that move, turned: the angle sum in fp64, as the core composes it.
EVERLONG_HD inline void ComposePhase(int64_t index, const kv::SlotPhase& phase, int64_t source, const ShiftTurn& turn,
                                     const Divisor& by_half, float* cos_out, float* sin_out) {
  const int64_t at = source * phase.half + index;
  const double c = phase.cos[at];
  const double s = phase.sin[at];
  const int64_t pair = by_half.Remainder(index);
  const double turn_c = turn.cos[pair];
  const double turn_s = turn.sin[pair];
  cos_out[index] = static_cast<float>(c * turn_c - s * turn_s);
  sin_out[index] = static_cast<float>(s * turn_c + c * turn_s);
}

}  // namespace everlong::hip
