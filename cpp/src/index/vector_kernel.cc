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

VectorKernels Supported() {
  VectorKernels supported;
  const auto add = [&supported](const VectorKernel& kernel) { supported.kernels[supported.count++] = kernel; };
#ifdef EVERLONG_KERNEL_X86
  const SimdLevel level = BestSimdLevel();
  if (level >= SimdLevel::kAvx512) add(avx512::kKernel);
  if (level >= SimdLevel::kAvx2) add(avx2::kKernel);
#endif
  add(portable::kKernel);
  return supported;
}

}  // namespace

const VectorKernels& SupportedVectorKernels() {
  static const VectorKernels kSupported = Supported();
  return kSupported;
}

}  // namespace everlong::index
