#include "sign_kernel.h"

#include <limits>

#include "everlong/base/simd_levels.h"

namespace everlong::index {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512_VNNI
namespace avx512_vnni {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_VNNI
#include "sign_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_VNNI
}  // namespace avx512_vnni
EVERLONG_KERNEL_END
#endif

#define EVERLONG_KERNEL_BODY "sign_kernel_body.inc"
#include "everlong/base/each_instruction_set.inc"

}  // namespace

const KernelTable<SignKernel>& SupportedSignKernels() {
  static const KernelTable<SignKernel> kSupported = SupportedOf<SignKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512Vnni, avx512_vnni::kKernel},
      {SimdLevel::kAvx512, avx512::kKernel},
      {SimdLevel::kAvx2, avx2::kKernel},
#endif
      {SimdLevel::kPortable, portable::kKernel},
  });
  return kSupported;
}

}  // namespace everlong::index
