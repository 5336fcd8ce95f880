// The codecs of a payload, and the layout of a part. Host C++, hipcc and nvcc use one layout.
//
// What a codec is, is said here alone: its line in EVERLONG_CODECS tells how many bits a code has and what tables are
// kept with the codes. Everything else follows from that: the layout, the kernels, what a number may be, the names that
// Python knows. A new codec is a line here. Only a new way to code a number (CodeKind) needs kernels, too.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::kv {

// A line a codec: its constant, its name, how a number is coded, the bits of a code of keys and of values, and whether
// channels of keys have centres.
//   kFloat32 and kBFloat16 are exact for models of these types.
//   OCP FP8 has K scaled per channel of a page and V per token. K scaled per token answers worse. The plain ones are
//   without centres of the keys' channels, which is how all were until format 3.
//   Integers have steps (base/element.h) per channel of a page for K, and per kStepsGroup of a token's numbers for V.
// clang-format off
#define EVERLONG_CODECS(Line)                         \
  Line(kFloat32, "fp32", kFloat32, 32, 32, false)     \
  Line(kBFloat16, "bf16", kBFloat16, 16, 16, false)   \
  Line(kE4M3, "e4m3", kE4M3, 8, 8, true)              \
  Line(kE5M2, "e5m2", kE5M2, 8, 8, true)              \
  Line(kPlainE4M3, "e4m3-plain", kE4M3, 8, 8, false)  \
  Line(kPlainE5M2, "e5m2-plain", kE5M2, 8, 8, false)  \
  Line(kInt8, "int8", kSteps, 8, 8, false)            \
  Line(kInt6, "int6", kSteps, 6, 6, false)            \
  Line(kInt4, "int4", kSteps, 4, 4, false)            \
  Line(kK8V4, "k8v4", kSteps, 8, 4, false)            \
  Line(kK5V4, "k5v4", kSteps, 5, 4, false)
// clang-format on

enum class Codec : uint8_t {
#define EVERLONG_CONSTANT(constant, ...) constant,
  EVERLONG_CODECS(EVERLONG_CONSTANT)
#undef EVERLONG_CONSTANT
};

// Numbers of a token's values that share a step, from the first of the head on; the last group may have fewer.
inline constexpr int32_t kStepsGroup = 64;

// How a number is coded.
enum class CodeKind : uint8_t { kFloat32, kBFloat16, kE4M3, kE5M2, kSteps };

struct CodecForm {
  CodeKind kind = CodeKind::kFloat32;
  int32_t key_bits = 32;  // of a code
  int32_t value_bits = 32;
  bool centred = false;  // whether channels of keys have centres
};

EVERLONG_HD constexpr CodecForm FormOf(Codec codec) {
  switch (codec) {
#define EVERLONG_FORM(constant, name, code_kind, key_bits, value_bits, centred) \
  case Codec::constant:                                                         \
    return {CodeKind::code_kind, key_bits, value_bits, centred};
    EVERLONG_CODECS(EVERLONG_FORM)
#undef EVERLONG_FORM
  }
  return {};
}

// Return whether a part holds scales or steps.
EVERLONG_HD constexpr bool HasScales(Codec codec) { return FormOf(codec).key_bits <= 8; }
EVERLONG_HD constexpr bool HasSteps(Codec codec) { return FormOf(codec).kind == CodeKind::kSteps; }

// Return the largest number of a codec with scales.
EVERLONG_HD constexpr float FormatMax(Codec codec) {
  return FormOf(codec).kind == CodeKind::kE4M3 ? kE4M3Max : kE5M2Max;
}

// Return the first MagnitudeBits that the codec cannot hold: NaN, infinity, and what rounds to it.
EVERLONG_HD constexpr uint32_t RejectedBits(Codec codec) {
  if (HasSteps(codec)) return 0x7E800000U;  // kStepsLimit
  return codec == Codec::kBFloat16 ? 0x7F7F8000U : kFloatInfinityBits;
}

// The layout of a part (one layer of one page of `tokens`, kv/payload.h), as byte offsets from its start.
struct PartLayout {
  Codec codec = Codec::kE4M3;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t tokens = 0;

  // The bytes of one token's codes, and how many scales or steps its values have.
  EVERLONG_HD constexpr int64_t KRow() const { return PackedBytes(head_dim, FormOf(codec).key_bits); }
  EVERLONG_HD constexpr int64_t VRow() const { return PackedBytes(head_dim, FormOf(codec).value_bits); }
  EVERLONG_HD constexpr int32_t VGroups() const {
    return HasSteps(codec) ? (head_dim + kStepsGroup - 1) / kStepsGroup : 1;
  }

  EVERLONG_HD constexpr int64_t KCodes(int64_t head) const { return head * tokens * KRow(); }  // [T, D]
  EVERLONG_HD constexpr int64_t VCodes(int64_t head) const {                                   // [T, D]
    return KCodes(kv_heads) + head * tokens * VRow();
  }
  EVERLONG_HD constexpr int64_t KScales(int64_t head) const {  // [D] fp32, or StepsTable
    return VCodes(kv_heads) + 4 * head * head_dim;
  }
  EVERLONG_HD constexpr int64_t VScales(int64_t head) const {  // [T] fp32, or [T, VGroups()] StepsTable
    return KScales(kv_heads) + 4 * head * tokens * VGroups();
  }
  EVERLONG_HD constexpr int64_t KCentres(int64_t head) const {
    return VScales(kv_heads) + 2 * head * head_dim;
  }  // [D] bf16
  EVERLONG_HD constexpr int64_t Bytes() const {
    if (!HasScales(codec)) return VCodes(kv_heads);
    return FormOf(codec).centred ? KCentres(kv_heads) : VScales(kv_heads);
  }
};

}  // namespace everlong::kv
