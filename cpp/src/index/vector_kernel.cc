#include "everlong/index/vector_kernel.h"

#include "simd_levels.h"

namespace everlong::index {
namespace {

#ifdef EVERLONG_KERNEL_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#define EVERLONG_KERNEL_LANES 16
#include "vector_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define EVERLONG_KERNEL_LANES 8
#include "vector_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
}  // namespace avx2
#pragma GCC pop_options
#endif

namespace portable {
#define EVERLONG_KERNEL_LANES 4
#include "vector_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
}  // namespace portable

}  // namespace

const KernelTable<VectorKernel>& SupportedVectorKernels() {
  static const KernelTable<VectorKernel> kSupported = Supported<VectorKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512, avx512::kKernel},
      {SimdLevel::kAvx2, avx2::kKernel},
#endif
      {SimdLevel::kPortable, portable::kKernel},
  });
  return kSupported;
}

}  // namespace everlong::index
