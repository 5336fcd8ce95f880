#include "transform_kernel.h"

#include "everlong/base/simd_levels.h"

namespace everlong::kv {
namespace {

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512
namespace avx512 {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_NAME "avx512"
#include "transform_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_NAME
}  // namespace avx512
EVERLONG_KERNEL_END

EVERLONG_KERNEL_AVX2
namespace avx2 {
#define EVERLONG_KERNEL_LANES 8
#define EVERLONG_KERNEL_NAME "avx2"
#include "transform_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_NAME
}  // namespace avx2
EVERLONG_KERNEL_END
#endif

namespace portable {
#define EVERLONG_KERNEL_LANES 4
#define EVERLONG_KERNEL_NAME "portable"
#include "transform_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_NAME
}  // namespace portable

}  // namespace

const KernelTable<TransformKernel>& SupportedTransformKernels() {
  static const KernelTable<TransformKernel> kSupported = SupportedOf<TransformKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512, avx512::kKernel},
      {SimdLevel::kAvx2, avx2::kKernel},
#endif
      {SimdLevel::kPortable, portable::kKernel},
  });
  return kSupported;
}

}  // namespace everlong::kv
