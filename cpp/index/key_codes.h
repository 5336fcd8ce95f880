// Encode one number of a key, for every KeyStorage. key_layout.h decodes it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "everlong/base/element.h"
#include "everlong/index/key_layout.h"
#include "int8.h"

namespace everlong::index {

// No code times such a scale is a subnormal bf16, which some instruction sets keep and others do not.
inline constexpr float kLeastScale = 0x1p-110F;
inline constexpr float kLargestBf16 = 0x1.FEp127F;

// A finite value of float's last half step below 2^128 becomes infinite.
inline bool FiniteAsBf16(float value) { return (FloatToBFloat16(value) & 0x7F80U) != 0x7F80U; }

// Return the scale of a channel, given its largest magnitude; 1 in bf16.
inline float ScaleOf(KeyStorage storage, float largest) {
  if (storage == KeyStorage::kBf16) return 1;
  const float format_max = storage == KeyStorage::kInt8 ? kInt8Max : kE4M3Max;
  return std::max(GroupScale(std::min(largest, kLargestBf16), format_max), kLeastScale);
}

inline uint32_t EncodeKey(KeyStorage storage, float value, float inverse_scale) {
  switch (storage) {
    case KeyStorage::kBf16:
      return FloatToBFloat16(value);
    case KeyStorage::kInt8:
      return static_cast<uint8_t>(FloatToInt8(value * inverse_scale));
    case KeyStorage::kE4M3:
      return FloatToE4M3(value * inverse_scale);
  }
  return 0;
}

}  // namespace everlong::index
