// Exchange of values between threads that run in step: a warp of NVIDIA's 32, a wave of AMD's 64.
#pragma once

#include <cstdint>

#include "vendor.h"

namespace everlong::hip {

// Return the value of the lane whose number differs by the bit `distance`. All kLanes must call it. It touches no
// memory: gfx908 goes through the crossbar of its LDS, which has no bank conflicts.
template <int32_t kLanes>
__device__ inline float FromLane(float value, int32_t distance) {
#if defined(__HIPCC__)
  return __shfl_xor(value, distance, kLanes);
#else
  return __shfl_xor_sync(0xFFFFFFFFU, value, distance, kLanes);
#endif
}

}  // namespace everlong::hip
