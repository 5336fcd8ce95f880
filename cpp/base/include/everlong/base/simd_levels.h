// The instruction sets that kernels are compiled for, and those that this CPU can run. Only the sources of kernels
// include it, because it includes the intrinsics.
#pragma once

// GCC can compile a part of a file for another instruction set. The program chooses between the parts when it runs.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define EVERLONG_KERNEL_X86 1
// The intrinsics headers of GCC 12 make undefined vectors by initialising them with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <initializer_list>
#include <utility>

#include "everlong/base/kernel_table.h"

namespace everlong {

enum class SimdLevel { kPortable, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16 };

// Code between one of these and EVERLONG_KERNEL_END is compiled for that level, with every extension that BestSimdLevel
// requires for it. kPortable needs no such macro.
#ifdef EVERLONG_KERNEL_X86
#define EVERLONG_KERNEL_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define EVERLONG_KERNEL_AVX512 EVERLONG_KERNEL_AVX2 _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl\")")
#define EVERLONG_KERNEL_AVX512_VNNI EVERLONG_KERNEL_AVX512 _Pragma("GCC target(\"avx512vnni\")")
#define EVERLONG_KERNEL_AVX512_BF16 EVERLONG_KERNEL_AVX512_VNNI _Pragma("GCC target(\"avx512bf16\")")
#define EVERLONG_KERNEL_END _Pragma("GCC pop_options")
#endif

// Return the best level that this CPU can run.
inline SimdLevel BestSimdLevel() {
#ifdef EVERLONG_KERNEL_X86
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("f16c") != 0;
  if (!has_avx2) return SimdLevel::kPortable;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (!has_avx512) return SimdLevel::kAvx2;
  if (__builtin_cpu_supports("avx512vnni") == 0) return SimdLevel::kAvx512;
  return __builtin_cpu_supports("avx512bf16") != 0 ? SimdLevel::kAvx512Bf16 : SimdLevel::kAvx512Vnni;
#else
  return SimdLevel::kPortable;
#endif
}

// Return those of `compiled` that this CPU can run. `compiled` lists the best first.
template <class Kernel>
KernelTable<Kernel> SupportedOf(std::initializer_list<std::pair<SimdLevel, Kernel>> compiled) {
  KernelTable<Kernel> supported;
  for (const auto& [level, kernel] : compiled) {
    if (level <= BestSimdLevel()) supported.kernels[supported.count++] = kernel;
  }
  return supported;
}

}  // namespace everlong
