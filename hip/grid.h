// How work is spread over blocks of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch.h"
#include "vendor.h"

namespace everlong::hip {

inline constexpr int32_t kBlockThreads = 256;
inline constexpr int64_t kMostBlocks = 1 << 20;  // threads stride over what is left

inline dim3 BlocksFor(int64_t work) {
  return dim3(static_cast<uint32_t>(std::min((work + kBlockThreads - 1) / kBlockThreads, kMostBlocks)));
}

// What the launch before it returned.
inline LaunchStatus Launched() { return static_cast<LaunchStatus>(hipGetLastError()); }

// For an answer of the runtime that is none of a launch's ("no memory", "not ready"): Launched would report it.
inline LaunchStatus Answered(hipError_t answer) {
  if (answer != hipError_t{}) static_cast<void>(hipGetLastError());
  return static_cast<LaunchStatus>(answer);
}

// The calling thread's first index of a loop over work, and how far apart its indexes are.
__device__ inline int64_t FirstIndex() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t IndexStride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace everlong::hip

// Returns from the calling function when enqueueing failed.
#define EVERLONG_RETURN_IF_NOT_LAUNCHED(call)                                                                       \
  do {                                                                                                              \
    if (const ::everlong::hip::LaunchStatus everlong_launch = (call); everlong_launch != 0) return everlong_launch; \
  } while (false)
