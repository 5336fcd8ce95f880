#include "slab_kernels.h"

#include <cstring>
#include <type_traits>

#include "everlong/base/cache_lines.h"
#include "everlong/base/check.h"
#include "everlong/base/element.h"
#include "everlong/base/simd_levels.h"

// Sanitizers make every loop's code large. Their builds have each loop once, with parts of vectors, and not for AVX2.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EVERLONG_KERNEL_SANITIZED 1
#define EVERLONG_KERNEL_WITHOUT_AVX2 1
#endif

namespace everlong::kv {
namespace {

#define EVERLONG_KERNEL_BODY "slab_kernels_body.inc"
#include "everlong/base/each_instruction_set.inc"

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
  switch (FormOf(codec).kind) {
    case CodeKind::kFloat32:
      return Format::kFloat32;
    case CodeKind::kBFloat16:
      return Format::kBFloat16;
    case CodeKind::kE4M3:
      return Format::kE4M3;
    case CodeKind::kE5M2:
      return Format::kE5M2;
    case CodeKind::kSteps:
      return Format::kSteps;
  }
  EVERLONG_CHECK(false);
}

const KernelTable<SlabKernels>& SupportedSlabKernels() {
  static const KernelTable<SlabKernels> kSupported = SupportedOf<SlabKernels>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512, avx512::kKernels},
#ifndef EVERLONG_KERNEL_WITHOUT_AVX2
      {SimdLevel::kAvx2, avx2::kKernels},
#endif
#endif
      {SimdLevel::kPortable, portable::kKernels},
  });
  return kSupported;
}

}  // namespace everlong::kv
