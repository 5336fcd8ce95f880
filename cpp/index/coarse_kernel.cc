#include "coarse_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "everlong/base/check.h"
#include "everlong/base/simd_levels.h"
#include "int8.h"

namespace everlong::index {
namespace {

constexpr float kLeastQuery = 0x1p-100F;  // a score of less than that is 0
constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512_VNNI
namespace avx512_vnni {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_VNNI
#include "coarse_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_VNNI
}  // namespace avx512_vnni
EVERLONG_KERNEL_END
#endif

#define EVERLONG_KERNEL_BODY "coarse_kernel_body.inc"
#include "everlong/base/each_instruction_set.inc"

}  // namespace

CoarseRows::CoarseRows(int32_t axes) : quads_(static_cast<size_t>(axes / 4 * kBlockRows)) {
  EVERLONG_CHECK(axes % kWordAxes == 0);
}

void CoarseRows::Set(int32_t row, std::span<const float> query) {
  count_ = std::max(count_, row + 1);
  float largest = 0;
  for (const float number : query) {
    if (!std::isfinite(number)) return;  // only a file can give axes so long
    largest = std::max(largest, std::abs(number));
  }
  if (largest <= kLeastQuery) return;
  scales_[row] = largest / kInt8Max;
  int32_t positive = 0;
  for (size_t axis = 0; axis < query.size(); ++axis) {
    const int8_t code = FloatToInt8(query[axis] * (kInt8Max / largest));
    positive += std::max(0, int32_t{code});
    quads_[axis / 4 * kBlockRows + static_cast<size_t>(row)] |= static_cast<uint32_t>(static_cast<uint8_t>(code))
                                                                << (axis % 4 * 8);
  }
  bounds_[row] = double{scales_[row]} * positive * kLargestCode;
}

const KernelTable<CoarseKernel>& SupportedCoarseKernels() {
  static const KernelTable<CoarseKernel> kSupported = SupportedOf<CoarseKernel>({
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
