// What bf16 storage does to a key, by definition and not by bits.
#pragma once

#include <cmath>

namespace everlong::index {

// The nearest number of 8 significant bits, ties to even: what bf16 keeps of a normal float.
inline double RoundToBf16(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

}  // namespace everlong::index
