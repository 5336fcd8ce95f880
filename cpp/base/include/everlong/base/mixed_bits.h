// Random bits that depend only on a seed and a number.
#pragma once

#include <cstdint>

namespace everlong {

// Return 64 bits that each depend on all bits of the seed and the number: SplitMix64 (Steele, Lea and Flood, 2014).
inline uint64_t MixedBits(uint64_t seed, uint64_t number) {
  uint64_t bits = seed + (number + 1) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

}  // namespace everlong
