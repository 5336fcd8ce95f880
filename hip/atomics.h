// An atomic minimum for the threads of a grid. On the host, where threads run one by one, it is a plain update.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

#if defined(__HIPCC__) || defined(__CUDACC__)
#include "vendor.h"
#endif

namespace everlong::hip {

EVERLONG_HD inline void AtomicMin(uint64_t* at, uint64_t value) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  using Atomic = unsigned long long;  // NOLINT(google-runtime-int): the type that the runtime names
  atomicMin(reinterpret_cast<Atomic*>(at), static_cast<Atomic>(value));
#else
  if (value < *at) *at = value;
#endif
}

}  // namespace everlong::hip
