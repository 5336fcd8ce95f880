#include "everlong/kv/slab_kernels.h"

#include <cstring>
#include <type_traits>

#include "everlong/base/cache_lines.h"
#include "everlong/base/check.h"
#include "everlong/kv/element.h"

// GCC compiles a part of a file for another instruction set; the choice between them is made when the program runs.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define EVERLONG_KERNEL_X86 1
// The intrinsics' headers of GCC 12 make undefined vectors by initialising them with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

// Sanitizers make much code of every loop: their builds hold each once, with its parts of vectors, and not for AVX2.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EVERLONG_KERNEL_SANITIZED 1
#endif

namespace everlong::kv {
namespace {

#ifdef EVERLONG_KERNEL_X86
#pragma GCC push_options
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_NAME "avx512"
#include "slab_kernels_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_NAME
}  // namespace avx512
#pragma GCC pop_options

#ifndef EVERLONG_KERNEL_SANITIZED
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
namespace avx2 {
#define EVERLONG_KERNEL_LANES 8
#define EVERLONG_KERNEL_NAME "avx2"
#include "slab_kernels_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_NAME
}  // namespace avx2
#pragma GCC pop_options
#endif
#endif

namespace portable {
#define EVERLONG_KERNEL_LANES 4
#define EVERLONG_KERNEL_NAME "portable"
#include "slab_kernels_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_NAME
}  // namespace portable

SupportedKernels Supported() {
  SupportedKernels supported;
  const auto add = [&supported](const SlabKernels& kernels) { supported.kernels[supported.count++] = kernels; };
#ifdef EVERLONG_KERNEL_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  if (has_avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    add(avx512::kKernels);
  }
#ifndef EVERLONG_KERNEL_SANITIZED
  if (has_avx2) add(avx2::kKernels);
#endif
#endif
  add(portable::kKernels);
  return supported;
}

}  // namespace

Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Format::kFloat32;
    case DType::kFloat16:
      return Format::kFloat16;
    case DType::kBFloat16:
      return Format::kBFloat16;
  }
  EVERLONG_CHECK(false);
}

Format FormatOf(Codec codec) {
  switch (codec) {
    case Codec::kFloat32:
      return Format::kFloat32;
    case Codec::kBFloat16:
      return Format::kBFloat16;
    case Codec::kE4M3:
      return Format::kE4M3;
    case Codec::kE5M2:
      return Format::kE5M2;
  }
  EVERLONG_CHECK(false);
}

const SupportedKernels& SupportedSlabKernels() {
  static const SupportedKernels kSupported = Supported();
  return kSupported;
}

}  // namespace everlong::kv
