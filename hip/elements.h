// Stored numbers in a kernel: their conversion, and vectors of one access. Host code compiles it too.
#pragma once

#include <cstdint>

#include "everlong/base/dtype.h"
#include "everlong/base/element.h"
#include "everlong/kv/codec.h"

// Device code keeps an array in registers only when every index is known.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define EVERLONG_UNROLL _Pragma("unroll")
#else
#define EVERLONG_UNROLL
#endif

// FP8 by the hardware, where its bits are those of base/element.h. NVIDIA from sm_89 rounds to nearest even and
// saturates (PTX: cvt.rn.satfinite). Only NaNs have other bits, and none is ever encoded. AMD's gfx908 has no FP8, and
// gfx942 has it in another format (FNUZ, bias 8). There the integer arithmetic of base/element.h converts.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define EVERLONG_HARDWARE_FP8 1
#else
#define EVERLONG_HARDWARE_FP8 0
#endif
// BF16 by the hardware, except for NaNs. NVIDIA from sm_80 rounds to nearest even.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define EVERLONG_HARDWARE_BF16 1
#else
#define EVERLONG_HARDWARE_BF16 0
#endif

namespace everlong::hip {

// --- conversion of one number

struct Float32Element {
  EVERLONG_HD static float Widen(uint32_t bits) { return FloatFromBits(bits); }
  EVERLONG_HD static uint32_t Narrow(float value) { return FloatBits(value); }
};
struct Float16Element {
  EVERLONG_HD static float Widen(uint16_t bits) { return Float16ToFloat(bits); }
  EVERLONG_HD static uint16_t Narrow(float value) { return FloatToFloat16(value); }
};
struct BFloat16Element {
  EVERLONG_HD static float Widen(uint16_t bits) { return BFloat16ToFloat(bits); }
  EVERLONG_HD static uint16_t Narrow(float value) { return FloatToBFloat16(value); }
  // Two numbers, the first in the lower half.
  static constexpr bool kPairsMayBeNans = EVERLONG_HARDWARE_BF16 == 0;
  EVERLONG_HD static void WidenPair(uint32_t pair, float* values) {
    values[0] = FloatFromBits(pair << 16);
    values[1] = FloatFromBits(pair & 0xFFFF0000U);
  }
  EVERLONG_HD static uint32_t NarrowPair(float first, float second) {
#if EVERLONG_HARDWARE_BF16
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return static_cast<uint32_t>(Narrow(first)) | static_cast<uint32_t>(Narrow(second)) << 16;
#endif
  }
};
struct E4M3Element {
  EVERLONG_HD static float Widen(uint8_t bits) {
#if EVERLONG_HARDWARE_FP8
    float value;
    asm("{.reg .b32 halves; .reg .b16 low, high; cvt.rn.f16x2.e4m3x2 halves, %1; mov.b32 {low, high}, halves; "
        "cvt.f32.f16 %0, low;}"
        : "=f"(value)
        : "h"(static_cast<uint16_t>(bits)));
    return value;
#else
    return E4M3ToFloat(bits);
#endif
  }
  EVERLONG_HD static uint8_t Narrow(float value) {
#if EVERLONG_HARDWARE_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0F), "f"(value));
    return static_cast<uint8_t>(pair);
#else
    return FloatToE4M3(value);
#endif
  }
  static constexpr bool kPairsMayBeNans = true;  // none is ever encoded
  EVERLONG_HD static void WidenPair(uint16_t pair, float* values) {
#if EVERLONG_HARDWARE_FP8
    asm("{.reg .b32 halves; .reg .b16 low, high; cvt.rn.f16x2.e4m3x2 halves, %2; mov.b32 {low, high}, halves; "
        "cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(values[0]), "=f"(values[1])
        : "h"(pair));
#else
    values[0] = Widen(static_cast<uint8_t>(pair));
    values[1] = Widen(static_cast<uint8_t>(pair >> 8));
#endif
  }
  EVERLONG_HD static uint16_t NarrowPair(float first, float second) {
#if EVERLONG_HARDWARE_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return static_cast<uint16_t>(Narrow(first) | Narrow(second) << 8);
#endif
  }
};
struct E5M2Element {
  EVERLONG_HD static float Widen(uint8_t bits) {
#if EVERLONG_HARDWARE_FP8
    float value;
    asm("{.reg .b32 halves; .reg .b16 low, high; cvt.rn.f16x2.e5m2x2 halves, %1; mov.b32 {low, high}, halves; "
        "cvt.f32.f16 %0, low;}"
        : "=f"(value)
        : "h"(static_cast<uint16_t>(bits)));
    return value;
#else
    return E5M2ToFloat(bits);
#endif
  }
  EVERLONG_HD static uint8_t Narrow(float value) {
#if EVERLONG_HARDWARE_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0F), "f"(value));
    return static_cast<uint8_t>(pair);
#else
    return FloatToE5M2(value);
#endif
  }
  static constexpr bool kPairsMayBeNans = true;  // none is ever encoded
  EVERLONG_HD static void WidenPair(uint16_t pair, float* values) {
#if EVERLONG_HARDWARE_FP8
    asm("{.reg .b32 halves; .reg .b16 low, high; cvt.rn.f16x2.e5m2x2 halves, %2; mov.b32 {low, high}, halves; "
        "cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(values[0]), "=f"(values[1])
        : "h"(pair));
#else
    values[0] = Widen(static_cast<uint8_t>(pair));
    values[1] = Widen(static_cast<uint8_t>(pair >> 8));
#endif
  }
  EVERLONG_HD static uint16_t NarrowPair(float first, float second) {
#if EVERLONG_HARDWARE_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return static_cast<uint16_t>(Narrow(first) | Narrow(second) << 8);
#endif
  }
};

// Codes of steps (base/element.h), once they are out of their row: integers from 0 to 255.
struct StepsElement {
  EVERLONG_HD static float Widen(uint8_t bits) { return static_cast<float>(bits); }
  EVERLONG_HD static uint8_t Narrow(float value) { return static_cast<uint8_t>(FloatBits(value + kToInteger)); }
};

// Call body(element) with the conversion of `dtype`, to pick a kernel on the host.
template <class Body>
auto WithElement(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(Float32Element{});
    case DType::kFloat16:
      return body(Float16Element{});
    case DType::kBFloat16:
      break;
  }
  return body(BFloat16Element{});
}

// Call body(code) with the conversion of `codec`, to pick a kernel on the host.
template <class Body>
auto WithCode(kv::Codec codec, const Body& body) {
  switch (kv::FormOf(codec).kind) {
    case kv::CodeKind::kFloat32:
      return body(Float32Element{});
    case kv::CodeKind::kBFloat16:
      return body(BFloat16Element{});
    case kv::CodeKind::kE4M3:
      return body(E4M3Element{});
    case kv::CodeKind::kE5M2:
      return body(E5M2Element{});
    case kv::CodeKind::kSteps:
      break;
  }
  return body(StepsElement{});
}

// --- vectors

// The integer that stores an element.
template <class Element>
using BitsOf = decltype(Element::Narrow(0.0F));

// Elements of one 16-byte access.
template <class Element>
inline constexpr int32_t kVectorWidth = static_cast<int32_t>(16 / sizeof(BitsOf<Element>));

// A vector of kWidth elements as one aligned object. It is one 16-byte access when kWidth is kVectorWidth, and may
// alias elements of any type.
template <class Element, int32_t kWidth>
struct alignas(kWidth * sizeof(BitsOf<Element>)) [[gnu::may_alias]] ElementVector {
  BitsOf<Element> bits[kWidth];
};

// Load the vector at element `offset` of `base`, aligned to the vector.
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

// Load one at any byte address, since payloads are not aligned: in one access, or else one an element, if possible.
template <class Element, int32_t kWidth>
EVERLONG_HD inline ElementVector<Element, kWidth> LoadBytes(const uint8_t* at) {
  using Vector = ElementVector<Element, kWidth>;
  if (reinterpret_cast<uintptr_t>(at) % alignof(Vector) == 0) {
    return *static_cast<const Vector*>(static_cast<const void*>(at));
  }
  Vector vector;
  using One = ElementVector<Element, 1>;
  if (reinterpret_cast<uintptr_t>(at) % alignof(One) == 0) {
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth; ++i) {
      vector.bits[i] = static_cast<const One*>(static_cast<const void*>(at))[i].bits[0];
    }
    return vector;
  }
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) {
    BitsOf<Element> bits = 0;
    for (uint32_t byte = 0; byte < sizeof(bits); ++byte) {  // little-endian
      bits =
          static_cast<BitsOf<Element>>(bits | static_cast<BitsOf<Element>>(at[i * sizeof(bits) + byte]) << (8 * byte));
    }
    vector.bits[i] = bits;
  }
  return vector;
}

template <class Element, int32_t kWidth>
EVERLONG_HD inline void StoreBytes(const ElementVector<Element, kWidth>& vector, uint8_t* at) {
  using Vector = ElementVector<Element, kWidth>;
  if (reinterpret_cast<uintptr_t>(at) % alignof(Vector) == 0) {
    *static_cast<Vector*>(static_cast<void*>(at)) = vector;
    return;
  }
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) {
    const BitsOf<Element> bits = vector.bits[i];
    for (uint32_t byte = 0; byte < sizeof(bits); ++byte) {
      at[i * sizeof(bits) + byte] = static_cast<uint8_t>(bits >> (8 * byte));
    }
  }
}

// --- a vector at its own address, a multiple of its size

template <class Vector>
EVERLONG_HD inline Vector Loaded(const void* at) {
  return *static_cast<const Vector*>(at);
}

template <class Vector>
EVERLONG_HD inline void Store(const Vector& vector, void* at) {
  *static_cast<Vector*>(at) = vector;
}

// --- conversion of vectors

// Whether Element converts two numbers at once.
template <class Element>
concept ConvertsPairs = requires { Element::NarrowPair(0.0F, 0.0F); };

// The numbers of a vector, two by two.
template <class Element, int32_t kWidth>
struct VectorPairs {
  decltype(Element::NarrowPair(0.0F, 0.0F)) pairs[kWidth / 2];
};

// values [kWidth].
template <class Element, int32_t kWidth>
EVERLONG_HD inline void WidenVector(const ElementVector<Element, kWidth>& vector, float* values) {
  if constexpr (ConvertsPairs<Element> && kWidth % 2 == 0) {
    const auto pairs = __builtin_bit_cast(VectorPairs<Element, kWidth>, vector);
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth / 2; ++i) Element::WidenPair(pairs.pairs[i], values + 2 * i);
  } else {
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth; ++i) values[i] = Element::Widen(vector.bits[i]);
  }
}

template <class Element, int32_t kWidth>
EVERLONG_HD inline ElementVector<Element, kWidth> NarrowVector(const float* values) {
  if constexpr (ConvertsPairs<Element> && kWidth % 2 == 0) {
    bool in_pairs = true;
    if constexpr (!Element::kPairsMayBeNans) {
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kWidth; ++i) in_pairs = in_pairs && values[i] == values[i];
    }
    if (in_pairs) {
      VectorPairs<Element, kWidth> pairs;
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kWidth / 2; ++i) pairs.pairs[i] = Element::NarrowPair(values[2 * i], values[2 * i + 1]);
      return __builtin_bit_cast(ElementVector<Element, kWidth>, pairs);
    }
  }
  ElementVector<Element, kWidth> vector;
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) vector.bits[i] = Element::Narrow(values[i]);
  return vector;
}

// Return the larger of `most` and |value|, as MagnitudeBits orders them. A NaN may get other bits that are as large.
EVERLONG_HD inline uint32_t LargerMagnitude(uint32_t most, float value) {
#if EVERLONG_HARDWARE_BF16
  float larger;
  asm("{.reg .f32 magnitude; abs.f32 magnitude, %2; max.NaN.f32 %0, %1, magnitude;}"
      : "=f"(larger)
      : "f"(FloatFromBits(most)), "f"(value));
  return FloatBits(larger);
#else
  const uint32_t bits = MagnitudeBits(value);
  return bits > most ? bits : most;
#endif
}

}  // namespace everlong::hip
