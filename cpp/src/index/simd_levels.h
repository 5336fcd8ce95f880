// What the kernels of the index are compiled for, and what this CPU can run.
#pragma once

// GCC compiles a part of a file for another instruction set; the choice between them is made when the program runs.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define EVERLONG_KERNEL_X86 1
#endif

namespace everlong::index {

enum class SimdLevel { kPortable, kAvx2, kAvx512 };

// The best one that this CPU can run.
inline SimdLevel BestSimdLevel() {
#ifdef EVERLONG_KERNEL_X86
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) return SimdLevel::kPortable;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return has_avx512 ? SimdLevel::kAvx512 : SimdLevel::kAvx2;
#else
  return SimdLevel::kPortable;
#endif
}

}  // namespace everlong::index
