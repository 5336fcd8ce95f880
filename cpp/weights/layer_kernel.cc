#include "layer_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "everlong/base/simd_levels.h"

namespace everlong::weights {
namespace {

#define EVERLONG_KERNEL_BODY "layer_kernel_body.inc"
#include "everlong/base/each_instruction_set.inc"

}  // namespace

const KernelTable<LayerKernel>& SupportedLayerKernels() {
  static const KernelTable<LayerKernel> kSupported = SupportedOf<LayerKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512, avx512::kKernel},
      {SimdLevel::kAvx2, avx2::kKernel},
#endif
      {SimdLevel::kPortable, portable::kKernel},
  });
  return kSupported;
}

}  // namespace everlong::weights
