// How a shift is cut so that threads do not disturb each other, and one thread's work in it. Host code compiles it too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "divisor.h"
#include "elements.h"
#include "everlong/base/dtype.h"
#include "everlong/base/element.h"
#include "rotation_kernels.h"
#include "row_units.h"
#include "shift_kernels.h"

namespace everlong::hip {

// A row's target may hold another row, which moves on by the same distance, and so on. One thread takes such a chain.
// It begins with the row whose target is free, and reads each row before it writes the one behind it there. There are
// as many chains as rows between source and target, or one a row where those do not overlap.
struct ShiftChains {
  int64_t source = 0;
  int64_t target = 0;
  int64_t count = 0;   // of rows
  int64_t chains = 0;  // also the distance of two rows of a chain
  bool last_first = false;

  explicit ShiftChains(const SlotShift& shift)
      : source(shift.source),
        target(shift.target),
        count(shift.count),
        chains(std::min(std::abs(shift.source - shift.target), shift.count)),
        last_first(shift.target > shift.source) {
    if (chains == 0) chains = count;
  }

  [[nodiscard]] EVERLONG_HD int64_t First(int64_t chain) const { return last_first ? count - 1 - chain : chain; }
  [[nodiscard]] EVERLONG_HD int64_t Step() const { return last_first ? -chains : chains; }
  [[nodiscard]] EVERLONG_HD int32_t Length(int64_t chain) const {
    return static_cast<int32_t>((count - chain + chains - 1) / chains);
  }
};

inline constexpr int64_t kFewestChains = 64;  // fewer cannot fill a GPU: rows then go through the workspace
inline constexpr int64_t kStagedRows = 512;

inline bool IsStaged(const SlotShift& shift) {
  return ShiftChains(shift).chains < std::min(kFewestChains, shift.count);
}

// Return the steps of a staged shift. A step reads all of its rows before it writes any. Steps run one after the other;
// those that free the target of later ones come first.
inline std::vector<SlotShift> StagedSteps(const SlotShift& shift) {
  std::vector<SlotShift> steps;
  for (int64_t first = 0; first < shift.count; first += kStagedRows) {
    const int64_t count = std::min(kStagedRows, shift.count - first);
    const int64_t row = shift.target < shift.source ? first : shift.count - first - count;
    steps.push_back({shift.source + row, shift.target + row, count});
  }
  return steps;
}

// Return `count` rows of every layer and head of k or v, from slot `source` of `base` to slot `target` of it.
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

// Return the same rows between frame and workspace, which holds them contiguously.
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

// Return a phase that moves, turned: the angle sum in fp64, as the core composes it.
EVERLONG_HD inline Phase ComposedPhase(const kv::SlotPhase& phase, int64_t at, const ShiftTurn& turn, int64_t pair) {
  const double c = phase.cos[at];
  const double s = phase.sin[at];
  const double turn_c = turn.cos[pair];
  const double turn_s = turn.sin[pair];
  return {static_cast<float>(c * turn_c - s * turn_s), static_cast<float>(s * turn_c + c * turn_s)};
}

// Compose phase number `index` of the [count, half] that move.
EVERLONG_HD inline void ComposePhase(int64_t index, const kv::SlotPhase& phase, int64_t source, const ShiftTurn& turn,
                                     const Divisor& by_half, float* cos_out, float* sin_out) {
  const Phase composed = ComposedPhase(phase, source * phase.half + index, turn, by_half.Remainder(index));
  cos_out[index] = composed.c;
  sin_out[index] = composed.s;
}

// Shift one phase of every row of a chain, in place. `index` counts [chains, half].
EVERLONG_HD inline void ShiftPhases(int64_t index, const ShiftChains& chains, const kv::SlotPhase& phase,
                                    const ShiftTurn& turn, const Divisor& by_half) {
  const int64_t chain = by_half.Quotient(index);
  if (chain >= chains.chains) return;
  const int64_t pair = index - chain * phase.half;
  int64_t row = chains.First(chain);
  for (int32_t left = chains.Length(chain); left > 0; --left, row += chains.Step()) {
    const Phase composed = ComposedPhase(phase, (chains.source + row) * phase.half + pair, turn, pair);
    const int64_t to = (chains.target + row) * phase.half + pair;
    phase.cos[to] = composed.c;
    phase.sin[to] = composed.s;
  }
}

// Shift one unit of every row of a chain, of one head of one layer. `index` counts the units of the chains. `by_units`
// divides by the units of a row.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys>
EVERLONG_HD inline void ShiftUnits(int64_t index, int32_t head, int32_t layer, const ShiftChains& chains,
                                   const kv::FrameKv& frame, const PairPhase& turn, const Divisor& by_units) {
  const int64_t chain = by_units.Quotient(index);
  if (chain >= chains.chains) return;
  const auto of_row = static_cast<int32_t>(index - chain * by_units.divisor());
  const RowUnit unit = UnitOfRow(of_row, kKeys ? turn.half : 0, kInterleaved, kWidth);
  UnitPhase<kWidth> phase{};
  if (unit.second != 0) phase = LoadPhase<kWidth>(turn.cos + unit.pair, turn.sin + unit.pair);
  auto* const base = static_cast<BitsOf<Element>*>(kKeys ? frame.k : frame.v) + layer * frame.layer_stride +
                     head * frame.head_stride + unit.d;
  const int64_t row = chains.First(chain);
  const int64_t stride = chains.Step() * frame.head_dim;
  MoveUnits<Element, kWidth, kInterleaved>(base + (chains.source + row) * frame.head_dim, stride,
                                           base + (chains.target + row) * frame.head_dim, stride, chains.Length(chain),
                                           unit.second, phase);
}

}  // namespace everlong::hip
