// The work of one thread in a rotation kernel: which unit it owns, and how it moves that.
#pragma once

#include <cstdint>

#include "divisor.h"
#include "elements.h"
#include "everlong/base/element.h"
#include "rotation_kernels.h"
#include "row_units.h"

namespace everlong::hip {

enum class Turn : uint8_t { kOff, kOn };  // kOff derotates, kOn rerotates

inline bool AreVectors(const RowStrides& strides, int32_t width) {
  return strides.b % width == 0 && strides.h % width == 0 && strides.t % width == 0;
}

// Return whether every vector of `width` elements of these rows starts at a multiple of 16 bytes.
inline bool AllowsVectors(const HeadRows& rows, int32_t half, int32_t width) {
  return IsAligned(rows.in) && IsAligned(rows.out) && RowsAreVectors(rows.head_dim, half, width) &&
         AreVectors(rows.in_strides, width) && AreVectors(rows.out_strides, width);
}

EVERLONG_HD inline int64_t UnitCount(const HeadRows& rows, int32_t half, int32_t width) {
  return rows.batch * rows.heads * rows.tokens * UnitsPerRow(rows.head_dim, half, width);
}

// The place of unit `index`. Offsets are in elements.
struct UnitPlace {
  int64_t in = 0;  // of its first vector
  int64_t out = 0;
  int64_t phase = 0;
  int32_t second = 0;  // offset of the second vector from the first; 0: a plain unit
};

// The divisors for the index of a unit. Without units there are no divisors.
struct RowDivisors {
  Divisor units;  // of a row
  Divisor tokens;
  Divisor heads;
};
inline RowDivisors DivisorsOf(const HeadRows& rows, int32_t half, int32_t width) {
  return {Divisor(UnitsPerRow(rows.head_dim, half, width)), Divisor(rows.tokens), Divisor(rows.heads)};
}

EVERLONG_HD inline UnitPlace PlaceOf(int64_t index, const HeadRows& rows, const PairPhase& phase, const RowDivisors& by,
                                     int32_t width) {
  const int64_t row = by.units.Quotient(index);
  const auto of_row = static_cast<int32_t>(index - row * by.units.divisor());
  const RowUnit unit = UnitOfRow(of_row, phase.half, phase.interleaved, width);
  const int64_t head = by.tokens.Quotient(row);  // among those of the whole batch
  const int64_t t = row - head * by.tokens.divisor();
  const int64_t b = by.heads.Quotient(head);
  const int64_t h = head - b * by.heads.divisor();
  const RowStrides& in = rows.in_strides;
  const RowStrides& out = rows.out_strides;
  return {b * in.b + h * in.h + t * in.t + unit.d, b * out.b + h * out.h + t * out.t + unit.d,
          b * phase.stride_b + t * phase.stride_t + unit.pair, unit.second};
}

// Move the unit at a place. kInterleaved is phase.interleaved, fixed so that every element keeps its register.
template <class Element, int32_t kWidth, Turn kTurn, bool kInterleaved>
EVERLONG_HD inline void MoveUnit(const UnitPlace& place, const HeadRows& rows, const PairPhase& phase) {
  const auto first = LoadVector<Element, kWidth>(rows.in, place.in);
  if (place.second == 0) {
    StoreVector<Element, kWidth>(first, rows.out, place.out);
    return;
  }
  UnitValues<kWidth> values;
  WidenVector(first, values.first());
  WidenVector(LoadVector<Element, kWidth>(rows.in, place.in + place.second), values.second());
  const float* cos = phase.cos + place.phase;
  const float* sin = phase.sin + place.phase;
  TurnPairs<kInterleaved>(values, [=](int32_t i) {
    const Phase by{cos[i], sin[i]};
    return kTurn == Turn::kOn ? by : InversePhase(by);
  });
  StoreVector(NarrowVector<Element, kWidth>(values.first()), rows.out, place.out);
  StoreVector(NarrowVector<Element, kWidth>(values.second()), rows.out, place.out + place.second);
}

// Move unit `index`: the body of the kernel.
template <class Element, int32_t kWidth, Turn kTurn, bool kInterleaved>
EVERLONG_HD inline void ProcessUnit(int64_t index, const HeadRows& rows, const PairPhase& phase,
                                    const RowDivisors& by) {
  MoveUnit<Element, kWidth, kTurn, kInterleaved>(PlaceOf(index, rows, phase, by, kWidth), rows, phase);
}

}  // namespace everlong::hip
