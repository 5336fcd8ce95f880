// The codecs of a payload, and the layout of a part. Host C++, hipcc and nvcc use one layout.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::kv {

enum class Codec : uint8_t {
  kFloat32,   // "fp32": exact for fp32 models
  kBFloat16,  // "bf16": exact for bf16 models
  // OCP FP8, with K scaled per channel of a page and V per token. K scaled per token answers worse.
  kE4M3,  // "e4m3"
  kE5M2,  // "e5m2"
};

// Return whether a part holds scales: only the FP8 codecs do.
EVERLONG_HD constexpr bool HasScales(Codec codec) { return codec == Codec::kE4M3 || codec == Codec::kE5M2; }

// Return the bytes of one element's code.
EVERLONG_HD constexpr int64_t CodeBytes(Codec codec) {
  if (codec == Codec::kFloat32) return 4;
  return codec == Codec::kBFloat16 ? 2 : 1;
}

// Return the largest number of a codec with scales.
EVERLONG_HD constexpr float FormatMax(Codec codec) { return codec == Codec::kE4M3 ? kE4M3Max : kE5M2Max; }

// Return the first MagnitudeBits that the codec cannot hold: NaN, infinity, and what rounds to it.
EVERLONG_HD constexpr uint32_t RejectedBits(Codec codec) {
  return codec == Codec::kBFloat16 ? 0x7F7F8000U : kFloatInfinityBits;
}

// The layout of a part (one layer of one page of `tokens`, kv/payload.h), as byte offsets from its start.
struct PartLayout {
  Codec codec = Codec::kE4M3;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t tokens = 0;

  EVERLONG_HD constexpr int64_t HeadCodes() const { return CodeBytes(codec) * tokens * head_dim; }
  EVERLONG_HD constexpr int64_t KCodes(int64_t head) const { return head * HeadCodes(); }               // [T, D]
  EVERLONG_HD constexpr int64_t VCodes(int64_t head) const { return (kv_heads + head) * HeadCodes(); }  // [T, D]
  EVERLONG_HD constexpr int64_t KScales(int64_t head) const {                                           // [D] fp32
    return 2 * kv_heads * HeadCodes() + 4 * head * head_dim;
  }
  EVERLONG_HD constexpr int64_t VScales(int64_t head) const {  // [T] fp32
    return KScales(kv_heads) + 4 * head * tokens;
  }
  EVERLONG_HD constexpr int64_t Bytes() const {
    return HasScales(codec) ? VScales(kv_heads) : 2 * kv_heads * HeadCodes();
  }
};

}  // namespace everlong::kv
