// Rounding to bf16, as keys and queries of the heads index are kept.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace everlong::index {

// Nearest, ties to even. A finite value of float's last half step below 2^128 becomes infinite.
inline uint32_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
}

inline bool FiniteAsBf16(float value) { return std::isfinite(value) && (ToBf16(value) & 0x7F80U) != 0x7F80U; }

}  // namespace everlong::index
