#include "everlong/index/heads_kernel.h"

#include <limits>

#include "everlong/index/key_tiles.h"
#include "simd_levels.h"

namespace everlong::index {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

#ifdef EVERLONG_KERNEL_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_ROWS 8
#include "heads_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_ROWS
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define EVERLONG_KERNEL_LANES 8
#define EVERLONG_KERNEL_ROWS 4
#include "heads_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_ROWS
}  // namespace avx2
#pragma GCC pop_options
#endif

namespace portable {
#define EVERLONG_KERNEL_LANES 4
#define EVERLONG_KERNEL_ROWS 4
#include "heads_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_ROWS
}  // namespace portable

HeadsKernels Supported() {
  HeadsKernels supported;
  const auto add = [&supported](const HeadsKernel& kernel) { supported.kernels[supported.count++] = kernel; };
#ifdef EVERLONG_KERNEL_X86
  const SimdLevel level = BestSimdLevel();
  if (level >= SimdLevel::kAvx512) add(avx512::kKernel);
  if (level >= SimdLevel::kAvx2) add(avx2::kKernel);
#endif
  add(portable::kKernel);
  return supported;
}

}  // namespace

const HeadsKernels& SupportedHeadsKernels() {
  static const HeadsKernels kSupported = Supported();
  return kSupported;
}

}  // namespace everlong::index
