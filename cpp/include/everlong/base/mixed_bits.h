// Draws that depend on nothing but what they are asked for.
#pragma once

#include <cstdint>

namespace everlong {

// 64 bits of a seed and a number, each of them by all of both: SplitMix64 (Steele, Lea and Flood, 2014).
inline uint64_t MixedBits(uint64_t seed, uint64_t number) {
  uint64_t bits = seed + (number + 1) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

}  // namespace everlong
