#include "vector_kernel.h"

#include "everlong/base/simd_levels.h"

namespace everlong::index {
namespace {

#define EVERLONG_KERNEL_BODY "vector_kernel_body.inc"
#include "everlong/base/each_instruction_set.inc"

}  // namespace

const KernelTable<VectorKernel>& SupportedVectorKernels() {
  static const KernelTable<VectorKernel> kSupported = SupportedOf<VectorKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512, avx512::kKernel},
      {SimdLevel::kAvx2, avx2::kKernel},
#endif
      {SimdLevel::kPortable, portable::kKernel},
  });
  return kSupported;
}

}  // namespace everlong::index
