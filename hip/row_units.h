// A row of D numbers cut into units, what a thread handles at a time: a rotated unit is two vectors of kWidth numbers
// that hold kWidth pairs, a plain unit is one vector of the numbers past rotary_dim. Host code compiles it too, so that
// a machine without a GPU can test the kernels against cpp/src/kv.
#pragma once

#include <cstdint>

#include "elements.h"
#include "everlong/kv/element.h"
#include "everlong/kv/frame_kv.h"

namespace everlong::hip {

EVERLONG_HD inline int32_t UnitsPerRow(int32_t head_dim, int32_t half, int32_t width) {
  return (half + (head_dim - 2 * half)) / width;
}

// Whether rows of head_dim numbers, 2 * half of them rotated, are whole vectors.
EVERLONG_HD inline bool RowsAreVectors(int32_t head_dim, int32_t half, int32_t width) {
  return half % width == 0 && head_dim % width == 0;
}

inline bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Whether every vector of `width` elements of the frame's rows starts at a multiple of 16 bytes.
inline bool AllowsVectors(const kv::FrameKv& frame, int32_t half, int32_t width) {
  return IsAligned(frame.k) && IsAligned(frame.v) && RowsAreVectors(frame.head_dim, half, width) &&
         frame.layer_stride % width == 0 && frame.head_stride % width == 0;
}

// Offsets in the row, in numbers.
struct RowUnit {
  int32_t d = 0;       // of the first vector
  int32_t second = 0;  // of the second behind the first; 0: a plain unit
  int32_t pair = 0;    // first pair of a rotated unit
};

EVERLONG_HD inline RowUnit UnitOfRow(int32_t unit, int32_t half, bool interleaved, int32_t width) {
  const int32_t pair = unit * width;
  if (pair >= half) return {half + pair, 0, 0};
  return interleaved ? RowUnit{2 * pair, width, pair} : RowUnit{pair, half, pair};
}

// The numbers of a unit, the first vector's and behind them, of a rotated unit, the second's.
template <int32_t kWidth>
struct UnitValues {
  float numbers[2 * kWidth];
  EVERLONG_HD float* first() { return numbers; }
  EVERLONG_HD float* second() { return numbers + kWidth; }
};

// Turns the pairs of a rotated unit; phase_of(i) is that of its i-th pair.
template <bool kInterleaved, int32_t kWidth, class PhaseOf>
EVERLONG_HD inline void TurnPairs(UnitValues<kWidth>& values, const PhaseOf& phase_of) {
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) {
    // Half-split: x in the first vector, y in the second. Interleaved: x and y are neighbours in the 2 * kWidth
    // numbers.
    float& x = values.numbers[kInterleaved ? 2 * i : i];
    float& y = values.numbers[kInterleaved ? 2 * i + 1 : kWidth + i];
    const kv::Pair turned = kv::RotatePair({x, y}, phase_of(i));
    x = turned.x;
    y = turned.y;
  }
}

// The unit of the row that begins at number `row` of `base`.
template <class Element, int32_t kWidth>
EVERLONG_HD inline UnitValues<kWidth> LoadUnit(const void* base, int64_t row, RowUnit unit) {
  UnitValues<kWidth> values;
  WidenVector(LoadVector<Element, kWidth>(base, row + unit.d), values.first());
  if (unit.second != 0) {
    WidenVector(LoadVector<Element, kWidth>(base, row + unit.d + unit.second), values.second());
  }
  return values;
}

// Turns a rotated unit by cos[i], sin[i], those of its pairs.
template <bool kInterleaved, int32_t kWidth>
EVERLONG_HD inline void TurnUnit(UnitValues<kWidth>& values, RowUnit unit, const float* cos, const float* sin) {
  if (unit.second == 0) return;
  TurnPairs<kInterleaved>(values, [=](int32_t i) { return kv::Phase{cos[i], sin[i]}; });
}

}  // namespace everlong::hip
