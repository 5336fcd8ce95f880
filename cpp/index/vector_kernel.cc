#include "vector_kernel.h"

#include "everlong/base/simd_levels.h"

namespace everlong::index {
namespace {

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512
namespace avx512 {
#define EVERLONG_KERNEL_LANES 16
#include "vector_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
}  // namespace avx512
EVERLONG_KERNEL_END

EVERLONG_KERNEL_AVX2
namespace avx2 {
#define EVERLONG_KERNEL_LANES 8
#include "vector_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
}  // namespace avx2
EVERLONG_KERNEL_END
#endif

namespace portable {
#define EVERLONG_KERNEL_LANES 4
#include "vector_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
}  // namespace portable

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
