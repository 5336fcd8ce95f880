// A row of D numbers cut into units, one a thread at a time. A rotated unit is two vectors of kWidth numbers that hold
// kWidth pairs. A plain unit is one vector of the numbers past rotary_dim. Host code compiles it too, so that a machine
// without a GPU can test the kernels against cpp/kv.
#pragma once

#include <cstdint>

#include "elements.h"
#include "everlong/base/element.h"
#include "everlong/kv/frame_kv.h"

namespace everlong::hip {

EVERLONG_HD inline int32_t UnitsPerRow(int32_t head_dim, int32_t half, int32_t width) {
  return (half + (head_dim - 2 * half)) / width;
}

// Return whether rows of head_dim numbers, 2 * half of them rotated, are whole vectors.
EVERLONG_HD inline bool RowsAreVectors(int32_t head_dim, int32_t half, int32_t width) {
  return half % width == 0 && head_dim % width == 0;
}

inline bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Return whether every vector of `width` elements of the frame's rows starts at a multiple of 16 bytes.
inline bool AllowsVectors(const kv::FrameKv& frame, int32_t half, int32_t width) {
  return IsAligned(frame.k) && IsAligned(frame.v) && RowsAreVectors(frame.head_dim, half, width) &&
         frame.layer_stride % width == 0 && frame.head_stride % width == 0;
}

// Offsets in the row, in numbers.
struct RowUnit {
  int32_t d = 0;       // of the first vector
  int32_t second = 0;  // offset of the second vector from the first; 0: a plain unit
  int32_t pair = 0;    // first pair of a rotated unit
};

EVERLONG_HD inline RowUnit UnitOfRow(int32_t unit, int32_t half, bool interleaved, int32_t width) {
  const int32_t pair = unit * width;
  if (pair >= half) return {half + pair, 0, 0};
  return interleaved ? RowUnit{2 * pair, width, pair} : RowUnit{pair, half, pair};
}

// The numbers of a unit: those of the first vector, then, for a rotated unit, those of the second.
template <int32_t kWidth>
struct UnitValues {
  float numbers[2 * kWidth];
  EVERLONG_HD float* first() { return numbers; }
  EVERLONG_HD float* second() { return numbers + kWidth; }
};

// Turn the pairs of a rotated unit. phase_of(i) is the phase of its i-th pair.
template <bool kInterleaved, int32_t kWidth, class PhaseOf>
EVERLONG_HD inline void TurnPairs(UnitValues<kWidth>& values, const PhaseOf& phase_of) {
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) {
    // Half-split: x in the first vector, y in the second. Interleaved: x and y are neighbours in all numbers.
    float& x = values.numbers[kInterleaved ? 2 * i : i];
    float& y = values.numbers[kInterleaved ? 2 * i + 1 : kWidth + i];
    const Pair turned = RotatePair({x, y}, phase_of(i));
    x = turned.x;
    y = turned.y;
  }
}

// A unit as it is stored.
template <class Element, int32_t kWidth>
struct StoredUnit {
  ElementVector<Element, kWidth> first;
  ElementVector<Element, kWidth> second;
};

// Load the unit with its first vector at `at`, `second` numbers before its second one (0: it has none).
template <class Element, int32_t kWidth>
EVERLONG_HD inline StoredUnit<Element, kWidth> LoadUnit(const BitsOf<Element>* at, int32_t second) {
  StoredUnit<Element, kWidth> stored{};
  stored.first = Loaded<ElementVector<Element, kWidth>>(at);
  if (second != 0) stored.second = Loaded<ElementVector<Element, kWidth>>(at + second);
  return stored;
}

template <class Element, int32_t kWidth>
EVERLONG_HD inline UnitValues<kWidth> WidenUnit(const StoredUnit<Element, kWidth>& stored) {
  UnitValues<kWidth> values;
  WidenVector(stored.first, values.first());
  WidenVector(stored.second, values.second());
  return values;
}

template <class Element, int32_t kWidth>
EVERLONG_HD inline void StoreUnit(UnitValues<kWidth>& values, BitsOf<Element>* at, int32_t second) {
  Store(NarrowVector<Element, kWidth>(values.first()), at);
  Store(NarrowVector<Element, kWidth>(values.second()), at + second);
}

// The phases of a rotated unit's pairs. A thread that handles the same unit of many heads keeps them.
template <int32_t kWidth>
struct UnitPhase {
  float cos[kWidth];
  float sin[kWidth];
};

// Load the phases; cos and sin point at the unit's first pair.
template <int32_t kWidth>
EVERLONG_HD inline UnitPhase<kWidth> LoadPhase(const float* cos, const float* sin) {
  constexpr int32_t kFloats = kWidth < kVectorWidth<Float32Element> ? kWidth : kVectorWidth<Float32Element>;
  UnitPhase<kWidth> phase;
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; i += kFloats) {
    WidenVector(LoadBytes<Float32Element, kFloats>(reinterpret_cast<const uint8_t*>(cos + i)), phase.cos + i);
    WidenVector(LoadBytes<Float32Element, kFloats>(reinterpret_cast<const uint8_t*>(sin + i)), phase.sin + i);
  }
  return phase;
}

template <int32_t kWidth>
EVERLONG_HD inline UnitPhase<kWidth> InverseOf(const UnitPhase<kWidth>& phase) {
  UnitPhase<kWidth> inverse;
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) {
    const Phase of_pair = InversePhase({phase.cos[i], phase.sin[i]});
    inverse.cos[i] = of_pair.c;
    inverse.sin[i] = of_pair.s;
  }
  return inverse;
}

template <bool kInterleaved, int32_t kWidth>
EVERLONG_HD inline void TurnUnit(UnitValues<kWidth>& values, const UnitPhase<kWidth>& phase) {
  TurnPairs<kInterleaved>(values, [&](int32_t i) { return Phase{phase.cos[i], phase.sin[i]}; });
}

// Call load(i) and then use(i, loaded) for every i in [0, count), kAhead at a time. It loads all of them before it uses
// the first: memory answers late, so a thread that waits for each load uses little of its bandwidth.
template <int32_t kAhead, class Load, class Use>
EVERLONG_HD inline void ForEachLoaded(int32_t count, const Load& load, const Use& use) {
  int32_t i = 0;
  for (; i + kAhead <= count; i += kAhead) {
    decltype(load(0)) loaded[kAhead];
    EVERLONG_UNROLL
    for (int32_t j = 0; j < kAhead; ++j) loaded[j] = load(i + j);
    EVERLONG_UNROLL
    for (int32_t j = 0; j < kAhead; ++j) use(i + j, loaded[j]);
  }
  for (; i < count; ++i) use(i, load(i));
}

// How many units a thread loads before it uses the first.
inline constexpr int32_t kTurnedAhead = 2;
inline constexpr int32_t kPlainAhead = 4;

// Layers [first, end) of one head. A thread handles its unit of its row in each of them.
struct HeadLayers {
  int32_t head = 0;
  int32_t first = 0;
  int32_t end = 0;
};

// Move `count` units from `in` to `out`, a stride further each step. Rotated units turn by `phase`.
template <class Element, int32_t kWidth, bool kInterleaved>
EVERLONG_HD inline void MoveUnits(const BitsOf<Element>* in, int64_t in_stride, BitsOf<Element>* out,
                                  int64_t out_stride, int32_t count, int32_t second, const UnitPhase<kWidth>& phase) {
  if (second == 0) {
    using Vector = ElementVector<Element, kWidth>;
    ForEachLoaded<kPlainAhead>(
        count, [&](int32_t i) { return Loaded<Vector>(in + i * in_stride); },
        [&](int32_t i, const Vector& vector) { Store(vector, out + i * out_stride); });
    return;
  }
  using Stored = StoredUnit<Element, kWidth>;
  ForEachLoaded<kTurnedAhead>(
      count, [&](int32_t i) { return LoadUnit<Element, kWidth>(in + i * in_stride, second); },
      [&](int32_t i, const Stored& stored) {
        UnitValues<kWidth> values = WidenUnit(stored);
        TurnUnit<kInterleaved>(values, phase);
        StoreUnit<Element>(values, out + i * out_stride, second);
      });
}

}  // namespace everlong::hip
