// The work of one thread in a gather. Host code compiles it too.
#pragma once

#include <cstdint>

#include "divisor.h"
#include "elements.h"
#include "everlong/base/element.h"
#include "everlong/kv/position_phase.h"
#include "gather_kernels.h"
#include "row_units.h"

namespace everlong::hip {

// The turn of the gathered rows from their sources' rotation to their targets': cos, sin [count, half].
struct GatherTurn {
  float* cos = nullptr;
  float* sin = nullptr;
};

// Compute phase number `index` of [count, half], in fp64 as the core does, and record it in the target's slot.
EVERLONG_HD inline void ComposeGather(int64_t index, const kv::SlotPhase& from, const kv::SlotPhase& to,
                                      const SlotGather& gather, const TakenRope& rope, const Divisor& by_half,
                                      const GatherTurn& turn) {
  const int64_t row = by_half.Quotient(index);
  const int64_t pair = index - row * by_half.divisor();
  const int64_t source = gather.sources[row] * by_half.divisor() + pair;
  const int64_t target = gather.targets[row] * by_half.divisor() + pair;
  const Phase lost = InversePhase({from.cos[source], from.sin[source]});
  const Phase taken = kv::PhaseAt(gather.positions[row], rope.inv_freq[pair], rope.attention_scaling);
  const double c = taken.c;
  const double s = taken.s;
  turn.cos[index] = static_cast<float>(c * lost.c - s * lost.s);
  turn.sin[index] = static_cast<float>(s * lost.c + c * lost.s);
  to.cos[target] = taken.c;
  to.sin[target] = taken.s;
}

// One unit of one row in every layer of `span`. `index` counts the units of the rows. `by_units` divides by the units
// of one row.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys>
EVERLONG_HD inline void GatherUnits(int64_t index, const HeadLayers& span, const kv::FrameKv& from,
                                    const kv::FrameKv& to, int32_t half, const SlotGather& gather,
                                    const GatherTurn& turn, const Divisor& by_units) {
  const int64_t row = by_units.Quotient(index);
  if (row >= gather.count) return;
  const auto of_row = static_cast<int32_t>(index - row * by_units.divisor());
  const RowUnit unit = UnitOfRow(of_row, kKeys ? half : 0, kInterleaved, kWidth);
  UnitPhase<kWidth> phase{};
  if (unit.second != 0) {
    const int64_t first = row * half + unit.pair;
    phase = LoadPhase<kWidth>(turn.cos + first, turn.sin + first);
  }
  const int64_t in =
      span.first * from.layer_stride + span.head * from.head_stride + gather.sources[row] * from.head_dim + unit.d;
  const int64_t out =
      span.first * to.layer_stride + span.head * to.head_stride + gather.targets[row] * to.head_dim + unit.d;
  MoveUnits<Element, kWidth, kInterleaved>(static_cast<const BitsOf<Element>*>(kKeys ? from.k : from.v) + in,
                                           from.layer_stride, static_cast<BitsOf<Element>*>(kKeys ? to.k : to.v) + out,
                                           to.layer_stride, span.end - span.first, unit.second, phase);
}

}  // namespace everlong::hip
