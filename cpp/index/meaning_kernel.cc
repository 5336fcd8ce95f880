#include "meaning_kernel.h"

#include <limits>

#include "everlong/base/check.h"
#include "everlong/base/simd_levels.h"

namespace everlong::index {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512_VNNI
namespace avx512_vnni {
#define EVERLONG_KERNEL_LANES 16
#define EVERLONG_KERNEL_VNNI
#include "meaning_kernel_body.inc"
#undef EVERLONG_KERNEL_LANES
#undef EVERLONG_KERNEL_VNNI
}  // namespace avx512_vnni
EVERLONG_KERNEL_END
#endif

#define EVERLONG_KERNEL_BODY "meaning_kernel_body.inc"
#include "everlong/base/each_instruction_set.inc"

uint32_t PairOf(int8_t low, int8_t high) {
  return static_cast<uint16_t>(int16_t{low}) | static_cast<uint32_t>(static_cast<uint16_t>(int16_t{high})) << 16U;
}

}  // namespace

MeaningRows::MeaningRows(int32_t dimension)
    : quads_(static_cast<size_t>(MeaningQuadsOf(dimension)) * kMeaningRows), pairs_(2 * quads_.size()) {}

void MeaningRows::Add(std::span<const int8_t> codes) {
  EVERLONG_CHECK(count_ < kMeaningRows);
  const auto row = static_cast<size_t>(count_++);
  for (size_t quad = 0; quad * kMeaningRows < quads_.size(); ++quad) {
    int8_t four[4] = {};
    for (size_t i = 0; i < 4 && quad * 4 + i < codes.size(); ++i) {
      four[i] = codes[quad * 4 + i];
      excess_[row] += 128 * four[i];
      quads_[quad * kMeaningRows + row] |= static_cast<uint32_t>(static_cast<uint8_t>(four[i])) << (8 * i);
    }
    pairs_[2 * quad * kMeaningRows + row] = PairOf(four[0], four[2]);
    pairs_[(2 * quad + 1) * kMeaningRows + row] = PairOf(four[1], four[3]);
  }
}

const KernelTable<MeaningKernel>& SupportedMeaningKernels() {
  static const KernelTable<MeaningKernel> kSupported = SupportedOf<MeaningKernel>({
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
