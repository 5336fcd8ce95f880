// The arithmetic of one number of a key, for every KeyStorage.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "bfloat16.h"
#include "everlong/index/key_tiles.h"
#include "everlong/kv/element.h"
#include "int8.h"

namespace everlong::index {

// Where a dimension's code lies in its tile.
struct CodePlace {
  size_t row = 0;  // of words
  uint32_t shift = 0;
};
inline CodePlace PlaceOf(KeyStorage storage, size_t dimension) {
  const auto half = static_cast<uint32_t>(dimension % 2 * 16);
  if (storage == KeyStorage::kBf16) return {dimension / 2, half};
  return {dimension / 4, half + static_cast<uint32_t>(dimension % 4 / 2 * 8)};
}

// No code times such a scale is subnormal as a bf16, which one instruction set would keep and another not.
inline constexpr float kLeastScale = 0x1p-110F;
inline constexpr float kLargestBf16 = 0x1.FEp127F;

// Of a channel whose largest magnitude is given; 1 in bf16.
inline float ScaleOf(KeyStorage storage, float largest) {
  if (storage == KeyStorage::kBf16) return 1;
  const float format_max = storage == KeyStorage::kInt8 ? kInt8Max : kv::kE4M3Max;
  return std::max(kv::GroupScale(std::min(largest, kLargestBf16), format_max), kLeastScale);
}

inline uint32_t EncodeKey(KeyStorage storage, float value, float inverse_scale) {
  switch (storage) {
    case KeyStorage::kBf16:
      return ToBf16(value);
    case KeyStorage::kInt8:
      return static_cast<uint8_t>(FloatToInt8(value * inverse_scale));
    case KeyStorage::kE4M3:
      return kv::FloatToE4M3(value * inverse_scale);
  }
  return 0;
}

// The number that a code stands for, a bf16.
inline float DecodeKey(KeyStorage storage, uint32_t code, float scale) {
  if (storage == KeyStorage::kBf16) return std::bit_cast<float>(code << 16);
  const float value =
      storage == KeyStorage::kInt8 ? static_cast<int8_t>(code) : kv::E4M3ToFloat(static_cast<uint8_t>(code));
  return std::bit_cast<float>(ToBf16(value * scale) << 16);
}

}  // namespace everlong::index
