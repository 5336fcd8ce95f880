#include "product_kernel.h"

#include <algorithm>
#include <cstring>

#include "everlong/base/check.h"
#include "everlong/base/element.h"
#include "everlong/base/simd_levels.h"

namespace everlong::weights {
namespace {

// Groups with a magnitude below this count as zeros: 127 / largest stays finite.
constexpr float kLeastMagnitude = 0x1p-100F;

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512_VNNI
namespace avx512_vnni {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_VNNI
#define EVERLONG_KERNEL_NAME "avx512_vnni"
#include "product_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_VNNI
#undef EVERLONG_KERNEL_NAME
}  // namespace avx512_vnni
EVERLONG_KERNEL_END
#endif

#define EVERLONG_KERNEL_BODY "product_kernel_body.inc"
#include "everlong/base/each_instruction_set.inc"

}  // namespace

CodeTraits TraitsOf(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return {8, false};
    case BlockFormat::kQ5_0:
      return {16, false};
    case BlockFormat::kQ8_0:
      return {128, false};
    case BlockFormat::kQ6_K:
      return {32, true};
    case BlockFormat::kQ4_1:
    case BlockFormat::kQ5_1:
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K:
      break;
  }
  return {};
}

const KernelTable<ProductKernel>& SupportedProductKernels() {
  static const KernelTable<ProductKernel> kSupported = SupportedOf<ProductKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512Vnni, avx512_vnni::kKernel},
      {SimdLevel::kAvx512, avx512::kKernel},
      {SimdLevel::kAvx2, avx2::kKernel},
#endif
      {SimdLevel::kPortable, portable::kKernel},
  });
  return kSupported;
}

}  // namespace everlong::weights
