// What one thread of a gather does. Host code compiles it too.
#pragma once

#include <cstdint>

#include "divisor.h"
#include "everlong/kv/element.h"
#include "gather_kernels.h"
#include "rotation_units.h"

namespace everlong::hip {

// All rows of k or v: where each lies in its head is the gather's to say.
inline HeadRows GatheredRows(const kv::FrameKv& from, const void* in, const kv::FrameKv& to, void* out, int64_t count) {
  return {in,
          out,
          to.dtype,
          to.layers,
          to.kv_heads,
          count,
          to.head_dim,
          {from.layer_stride, from.head_stride, 0},
          {to.layer_stride, to.head_stride, 0}};
}

// Phase number `index` of [count, half]: what turns the row from its source's rotation to its target's, in fp64 as the
// core has it; the target's slot says from now on which rotation it carries.
EVERLONG_HD inline void ComposeGather(int64_t index, const kv::SlotPhase& from, const kv::SlotPhase& to,
                                      const SlotGather& gather, const TakenPhase& taken, const Divisor& by_half,
                                      float* cos_out, float* sin_out) {
  const int64_t row = by_half.Quotient(index);
  const int64_t pair = index - row * by_half.divisor();
  const int64_t source = gather.sources[row] * by_half.divisor() + pair;
  const int64_t target = gather.targets[row] * by_half.divisor() + pair;
  const kv::Phase lost = kv::InversePhase({from.cos[source], from.sin[source]});
  const double c = taken.cos[index];
  const double s = taken.sin[index];
  cos_out[index] = static_cast<float>(c * lost.c - s * lost.s);
  sin_out[index] = static_cast<float>(s * lost.c + c * lost.s);
  to.cos[target] = taken.cos[index];
  to.sin[target] = taken.sin[index];
}

// All of unit `index` of `rows`, turned by `phase` [count, half].
template <class Element, int32_t kWidth, bool kInterleaved>
EVERLONG_HD inline void GatherUnit(int64_t index, const HeadRows& rows, const SlotGather& gather,
                                   const PairPhase& phase, const RowDivisors& by) {
  UnitPlace place = PlaceOf(index, rows, phase, by, kWidth);
  const int64_t row = by.tokens.Remainder(by.units.Quotient(index));
  place.in += gather.sources[row] * rows.head_dim;
  place.out += gather.targets[row] * rows.head_dim;
  MoveUnit<Element, kWidth, Turn::kOn, kInterleaved>(place, rows, phase);
}

}  // namespace everlong::hip
