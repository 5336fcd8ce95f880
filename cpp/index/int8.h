// Rounding to a signed byte, for vectors and keys in int8.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace everlong::index {

inline constexpr float kInt8Max = 127.0F;

// Round to nearest, ties to even. Values beyond +-127 become +-127.
inline int8_t FloatToInt8(float value) {
  return static_cast<int8_t>(std::clamp(std::nearbyint(value), -kInt8Max, kInt8Max));
}

}  // namespace everlong::index
