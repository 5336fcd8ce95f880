// What one thread of a rotation kernel does, apart from the GPU: which elements it owns and what becomes of them. Host
// code compiles it too, so that a machine without a GPU can test it against cpp/src/kv.
//
// A row of D elements is cut into units: a rotated unit is two vectors of kWidth elements that hold kWidth pairs, a
// copied unit is one vector of the elements past rotary_dim.
#pragma once

#include <cstdint>

#include "everlong/kv/element.h"
#include "rotation_kernels.h"

// Device code keeps an array in registers only when every index is known.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define EVERLONG_UNROLL _Pragma("unroll")
#else
#define EVERLONG_UNROLL
#endif

namespace everlong::hip {

enum class Turn : uint8_t { kOff, kOn };  // derotate, rerotate

// Conversion of one stored element.
struct Float32Element {
  EVERLONG_HD static float Widen(uint32_t bits) { return kv::FloatFromBits(bits); }
  EVERLONG_HD static uint32_t Narrow(float value) { return kv::FloatBits(value); }
};
struct Float16Element {
  EVERLONG_HD static float Widen(uint16_t bits) { return kv::Float16ToFloat(bits); }
  EVERLONG_HD static uint16_t Narrow(float value) { return kv::FloatToFloat16(value); }
};
struct BFloat16Element {
  EVERLONG_HD static float Widen(uint16_t bits) { return kv::BFloat16ToFloat(bits); }
  EVERLONG_HD static uint16_t Narrow(float value) { return kv::FloatToBFloat16(value); }
};

// How an element lies in memory.
template <class Element>
using BitsOf = decltype(Element::Narrow(0.0F));

// Elements of one 16-byte access.
template <class Element>
inline constexpr int32_t kVectorWidth = static_cast<int32_t>(16 / sizeof(BitsOf<Element>));

// Whether every vector of `width` elements of these rows starts at a multiple of 16 bytes.
inline bool AllowsVectors(const HeadRows& rows, int32_t half, int32_t width) {
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  return aligned(rows.in) && aligned(rows.out) && half % width == 0 && rows.head_dim % width == 0 &&
         rows.stride_b % width == 0 && rows.stride_h % width == 0 && rows.stride_t % width == 0;
}

EVERLONG_HD inline int64_t UnitsPerRow(const HeadRows& rows, int32_t half, int32_t width) {
  return (half + (rows.head_dim - 2 * half)) / width;
}

EVERLONG_HD inline int64_t UnitCount(const HeadRows& rows, int32_t half, int32_t width) {
  return rows.batch * rows.heads * rows.tokens * UnitsPerRow(rows, half, width);
}

// Where unit `index` lies. Offsets in elements, of its first vector; `second` is how far behind it the second stands.
struct UnitPlace {
  int64_t in = 0;
  int64_t out = 0;
  int32_t second = 0;  // 0: a copied unit
  int64_t phase = 0;
};

EVERLONG_HD inline UnitPlace PlaceOf(int64_t index, const HeadRows& rows, const PairPhase& phase, int32_t width) {
  const int64_t units = UnitsPerRow(rows, phase.half, width);
  const int64_t row = index / units;
  const auto unit = static_cast<int32_t>(index % units);
  const int64_t t = row % rows.tokens;
  const int64_t h = row / rows.tokens % rows.heads;
  const int64_t b = row / rows.tokens / rows.heads;
  const int32_t pair = unit * width;  // first pair of a rotated unit
  UnitPlace place;
  int32_t d = 0;
  if (pair < phase.half) {
    d = phase.interleaved ? 2 * pair : pair;
    place.second = phase.interleaved ? width : phase.half;
  } else {
    d = phase.half + pair;
  }
  place.in = b * rows.stride_b + h * rows.stride_h + t * rows.stride_t + d;
  place.out = row * rows.head_dim + d;
  place.phase = b * phase.stride_b + t * phase.half + pair;
  return place;
}

// A vector of kWidth elements as one aligned object: one 16-byte access when kWidth is kVectorWidth. It may stand for
// elements of any type (may_alias).
template <class Element, int32_t kWidth>
struct alignas(kWidth * sizeof(BitsOf<Element>)) [[gnu::may_alias]] ElementVector {
  BitsOf<Element> bits[kWidth];
};

template <class Element, int32_t kWidth>
EVERLONG_HD inline ElementVector<Element, kWidth> LoadVector(const void* base, int64_t offset) {
  const void* at = static_cast<const BitsOf<Element>*>(base) + offset;
  return *static_cast<const ElementVector<Element, kWidth>*>(at);
}

template <class Element, int32_t kWidth>
EVERLONG_HD inline void StoreVector(const ElementVector<Element, kWidth>& vector, void* base, int64_t offset) {
  void* at = static_cast<BitsOf<Element>*>(base) + offset;
  *static_cast<ElementVector<Element, kWidth>*>(at) = vector;
}

template <Turn kTurn>
EVERLONG_HD inline kv::Pair TurnPair(kv::Pair pair, float c, float s) {
  const kv::Phase phase{c, s};
  return kv::RotatePair(pair, kTurn == Turn::kOn ? phase : kv::InversePhase(phase));
}

// All of unit `index`: the body of the kernel. kInterleaved is phase.interleaved, fixed so that every element keeps its
// register.
template <class Element, int32_t kWidth, Turn kTurn, bool kInterleaved>
EVERLONG_HD inline void ProcessUnit(int64_t index, const HeadRows& rows, const PairPhase& phase) {
  const UnitPlace place = PlaceOf(index, rows, phase, kWidth);
  auto first = LoadVector<Element, kWidth>(rows.in, place.in);
  if (place.second == 0) {
    StoreVector<Element, kWidth>(first, rows.out, place.out);
    return;
  }
  auto second = LoadVector<Element, kWidth>(rows.in, place.in + place.second);
  const float* cos = phase.cos + place.phase;
  const float* sin = phase.sin + place.phase;
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) {
    // Half-split: x in the first vector, y in the second. Interleaved: x and y are neighbours in the 2 * kWidth
    // elements.
    const int32_t at_x = kInterleaved ? 2 * i : i;
    const int32_t at_y = kInterleaved ? 2 * i + 1 : kWidth + i;
    auto& x = at_x < kWidth ? first.bits[at_x] : second.bits[at_x - kWidth];
    auto& y = at_y < kWidth ? first.bits[at_y] : second.bits[at_y - kWidth];
    const kv::Pair turned = TurnPair<kTurn>({Element::Widen(x), Element::Widen(y)}, cos[i], sin[i]);
    x = Element::Narrow(turned.x);
    y = Element::Narrow(turned.y);
  }
  StoreVector<Element, kWidth>(first, rows.out, place.out);
  StoreVector<Element, kWidth>(second, rows.out, place.out + place.second);
}

}  // namespace everlong::hip
