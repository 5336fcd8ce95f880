#include "heads_kernel.h"

#include <limits>

#include "everlong/base/element.h"
#include "everlong/base/simd_levels.h"
#include "key_tiles.h"

namespace everlong::index {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512_BF16
namespace avx512_bf16 {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_BF16
#include "heads_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_BF16
}  // namespace avx512_bf16
EVERLONG_KERNEL_END
#endif

#define EVERLONG_KERNEL_BODY "heads_kernel_body.inc"
#include "everlong/base/each_instruction_set.inc"

}  // namespace

QueryRows::QueryRows(int32_t head_dim)
    : pairs_(static_cast<size_t>(PairsOf(head_dim)) * kBlockRows), values_(2 * pairs_.size()) {}

void QueryRows::Set(int32_t row, std::span<const float> query) {
  for (size_t i = 0; i < query.size(); ++i) {
    const uint16_t bits = FloatToBFloat16(query[i]);
    values_[i * kBlockRows + static_cast<size_t>(row)] = BFloat16ToFloat(bits);
    pairs_[i / 2 * kBlockRows + static_cast<size_t>(row)] |= static_cast<uint32_t>(bits) << (i % 2 * 16);
  }
}

const KernelTable<HeadsKernel>& SupportedHeadsKernels() {
  static const KernelTable<HeadsKernel> kSupported = SupportedOf<HeadsKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512Bf16, avx512_bf16::kKernel},
      {SimdLevel::kAvx512, avx512::kKernel},
      {SimdLevel::kAvx2, avx2::kKernel},
#endif
      {SimdLevel::kPortable, portable::kKernel},
  });
  return kSupported;
}

}  // namespace everlong::index
