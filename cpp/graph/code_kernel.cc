#include "code_kernel.h"

#include "everlong/base/simd_levels.h"

namespace everlong::graph {
namespace {

#ifdef EVERLONG_KERNEL_X86
EVERLONG_KERNEL_AVX512
namespace avx512 {

void Distances(const int8_t* groups, const int32_t* squares, int64_t group_count, int64_t width,
               const CodedQuery& query, int32_t* distances, uint16_t* near) {
  const __m512i square = _mm512_set1_epi32(query.square);
  const __m512i limit = _mm512_set1_epi32(query.limit);
  for (int64_t group = 0; group < group_count; ++group) {
    __m512i sums = _mm512_setzero_si512();
    for (int64_t i = 0; i < width; i += 2, groups += 2 * kGroupRows) {
      int32_t two = 0;
      __builtin_memcpy(&two, query.values + i, sizeof(two));
      const __m512i rows = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(groups)));
      sums = _mm512_add_epi32(sums, _mm512_madd_epi16(rows, _mm512_set1_epi32(two)));
    }
    const __m512i lengths = _mm512_add_epi32(_mm512_loadu_si512(squares + group * kGroupRows), square);
    const __m512i apart = _mm512_sub_epi32(lengths, _mm512_add_epi32(sums, sums));
    _mm512_storeu_si512(distances + group * kGroupRows, apart);
    near[group] = _mm512_cmple_epi32_mask(apart, limit);
  }
}

}  // namespace avx512
EVERLONG_KERNEL_END

EVERLONG_KERNEL_AVX2
namespace avx2 {

void Distances(const int8_t* groups, const int32_t* squares, int64_t group_count, int64_t width,
               const CodedQuery& query, int32_t* distances, uint16_t* near) {
  const __m256i square = _mm256_set1_epi32(query.square);
  const __m256i limit = _mm256_set1_epi32(query.limit);
  for (int64_t group = 0; group < group_count; ++group) {
    __m256i low = _mm256_setzero_si256();
    __m256i high = _mm256_setzero_si256();
    for (int64_t i = 0; i < width; i += 2, groups += 2 * kGroupRows) {
      int32_t two = 0;
      __builtin_memcpy(&two, query.values + i, sizeof(two));
      const __m256i by = _mm256_set1_epi32(two);
      const auto* const rows = reinterpret_cast<const __m128i*>(groups);
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(rows)), by));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(rows + 1)), by));
    }
    uint32_t beyond = 0;
    for (int32_t half = 0; half < 2; ++half) {
      const __m256i sums = half == 0 ? low : high;
      const int64_t at = group * kGroupRows + half * 8;
      const auto* const of_rows = reinterpret_cast<const __m256i*>(squares + at);
      const __m256i lengths = _mm256_add_epi32(_mm256_loadu_si256(of_rows), square);
      const __m256i apart = _mm256_sub_epi32(lengths, _mm256_add_epi32(sums, sums));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(distances + at), apart);
      const __m256 farther = _mm256_castsi256_ps(_mm256_cmpgt_epi32(apart, limit));
      beyond |= static_cast<uint32_t>(_mm256_movemask_ps(farther)) << (half * 8);
    }
    near[group] = static_cast<uint16_t>(~beyond);
  }
}

}  // namespace avx2
EVERLONG_KERNEL_END
#endif

namespace portable {

void Distances(const int8_t* groups, const int32_t* squares, int64_t group_count, int64_t width,
               const CodedQuery& query, int32_t* distances, uint16_t* near) {
  for (int64_t group = 0; group < group_count; ++group) {
    int32_t sums[kGroupRows] = {};
    for (int64_t i = 0; i < width; i += 2, groups += 2 * kGroupRows) {
      for (int64_t row = 0; row < kGroupRows; ++row) {
        sums[row] += groups[2 * row] * query.values[i] + groups[2 * row + 1] * query.values[i + 1];
      }
    }
    uint32_t within = 0;
    for (int64_t row = 0; row < kGroupRows; ++row) {
      const int64_t at = group * kGroupRows + row;
      distances[at] = squares[at] + query.square - 2 * sums[row];
      within |= (distances[at] <= query.limit ? 1U : 0U) << row;
    }
    near[group] = static_cast<uint16_t>(within);
  }
}

}  // namespace portable

}  // namespace

const KernelTable<CodeKernel>& SupportedCodeKernels() {
  static const KernelTable<CodeKernel> kSupported = SupportedOf<CodeKernel>({
#ifdef EVERLONG_KERNEL_X86
      {SimdLevel::kAvx512, {&avx512::Distances}},
      {SimdLevel::kAvx2, {&avx2::Distances}},
#endif
      {SimdLevel::kPortable, {&portable::Distances}},
  });
  return kSupported;
}

}  // namespace everlong::graph
