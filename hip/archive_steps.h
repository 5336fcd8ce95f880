// The work of one thread in archive_kv with codes of steps (archive_kernels.h). A thread encodes eight neighbouring
// channels of a page's keys, or one group of a token's values, and reads them twice: once for the group's ends. Host
// code compiles it too.
#pragma once

#include <cstdint>

#include "archive_units.h"

namespace everlong::hip {

// Codes of `bits` bits each are `bits` bytes of a row.
inline constexpr int32_t kPackedCodes = 8;

// One group of numbers that share a step.
struct StepsGroup {
  float least = FloatFromBits(kFloatInfinityBits);
  float largest = -FloatFromBits(kFloatInfinityBits);
  float inverse = 0;

  EVERLONG_HD void Add(float value) {
    least = value < least ? value : least;
    largest = value > largest ? value : largest;
  }
  // Store the table. `least` is then what the decoder adds.
  EVERLONG_HD void Finish(int32_t bits, uint8_t* out) {
    const float step = GroupStep(least, largest, bits);
    const uint32_t table = StepsTable(step, least, bits);
    StoreBytes<Float32Element, 1>({{table}}, out);
    least = LeastOf(table, bits);
    inverse = 1.0F / step;
  }
};

template <class Element, bool kInterleaved>
class StepsArchiver {
 public:
  EVERLONG_HD StepsArchiver(const ArchiveJob& job, const HeadPage& at, int32_t layer)
      : job_(job), at_(at), layer_(layer), part_(at.part + layer * at.layout.Bytes()) {}

  // Encode channels [first, first + count) of the page's keys; count <= kPackedCodes.
  EVERLONG_HD void Keys(int32_t first, int32_t count) const {
    const int32_t bits = kv::FormOf(job_.codec).key_bits;
    StepsGroup groups[kPackedCodes];
    for (int32_t t = 0; t < at_.layout.tokens; ++t) {
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kPackedCodes; ++i) {
        if (i < count) groups[i].Add(Read(true, t, first + i));
      }
    }
    uint8_t* const tables = part_ + at_.layout.KScales(at_.head) + int64_t{4} * first;
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kPackedCodes; ++i) {
      if (i < count) groups[i].Finish(bits, tables + 4 * i);
    }
    uint8_t* const codes = part_ + at_.layout.KCodes(at_.head) + int64_t{first / kPackedCodes} * bits;
    for (int32_t t = 0; t < at_.layout.tokens; ++t) {
      uint64_t packed = 0;
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kPackedCodes; ++i) {
        if (i < count) packed |= Code(groups[i], Number(true, t, first + i), bits) << (i * bits);
      }
      StorePacked(packed, count, bits, codes + t * at_.layout.KRow());
    }
  }

  // Encode the group of token t's values that begins at number `first`.
  EVERLONG_HD void Values(int32_t t, int32_t first) const {
    const int32_t bits = kv::FormOf(job_.codec).value_bits;
    const int32_t left = at_.layout.head_dim - first;
    const int32_t count = left < kv::kStepsGroup ? left : kv::kStepsGroup;
    StepsGroup group;
    for (int32_t i = 0; i < count; ++i) group.Add(Read(false, t, first + i));
    const int64_t number = int64_t{t} * at_.layout.VGroups() + first / kv::kStepsGroup;
    group.Finish(bits, part_ + at_.layout.VScales(at_.head) + 4 * number);
    uint8_t* const row = part_ + at_.layout.VCodes(at_.head) + t * at_.layout.VRow();
    for (int32_t i = 0; i < count; i += kPackedCodes) {
      const int32_t codes = count - i < kPackedCodes ? count - i : kPackedCodes;
      uint64_t packed = 0;
      for (int32_t j = 0; j < codes; ++j) {
        packed |= Code(group, Number(false, t, first + i + j), bits) << (j * bits);
      }
      StorePacked(packed, codes, bits, row + int64_t{(first + i) / kPackedCodes} * bits);
    }
  }

 private:
  [[nodiscard]] EVERLONG_HD float Number(bool is_key, int32_t t, int32_t d) const {
    return NumberAt<Element, kInterleaved>(job_, {is_key, layer_, at_.head, at_.first_token + t, d});
  }
  // The same, and record a number that the codec cannot hold.
  [[nodiscard]] EVERLONG_HD float Read(bool is_key, int32_t t, int32_t d) const {
    const float value = Number(is_key, t, d);
    RejectFirst<1>(&value, job_, at_, layer_, is_key, t, d);
    return value;
  }
  EVERLONG_HD static uint64_t Code(const StepsGroup& group, float value, int32_t bits) {
    return StepsCode(value, group.inverse, group.least, bits);
  }
  EVERLONG_HD static void StorePacked(uint64_t packed, int32_t codes, int32_t bits, uint8_t* out) {
    for (int32_t byte = 0; byte < PackedBytes(codes, bits); ++byte) {
      out[byte] = static_cast<uint8_t>(packed >> (8 * byte));
    }
  }

  const ArchiveJob& job_;
  const HeadPage& at_;
  int32_t layer_;
  uint8_t* part_;
};

// The eights of channels of a row, and the threads' units of a head in one layer: those of keys, then those of values.
EVERLONG_HD inline int32_t EightsOf(const ArchiveJob& job) {
  return (job.frame.head_dim + kPackedCodes - 1) / kPackedCodes;
}
EVERLONG_HD inline int32_t GroupsOf(const ArchiveJob& job) {
  return (job.frame.head_dim + kv::kStepsGroup - 1) / kv::kStepsGroup;
}
EVERLONG_HD inline int64_t StepsUnits(const ArchiveJob& job) {
  return PagesOf(job) * EightsOf(job) + job.tokens * GroupsOf(job);
}

// Encode unit `index` in every layer of a span.
template <class Element, bool kInterleaved>
EVERLONG_HD inline void ArchiveSteps(int64_t index, const HeadLayers& span, const ArchiveJob& job) {
  if (index >= StepsUnits(job)) return;
  const int64_t of_keys = PagesOf(job) * EightsOf(job);
  const bool is_key = index < of_keys;
  const int64_t token = (index - of_keys) / GroupsOf(job);
  const HeadPage at = HeadPageAt(job, is_key ? index / EightsOf(job) : token / job.page_tokens, span.head);
  for (int32_t layer = span.first; layer < span.end; ++layer) {
    const StepsArchiver<Element, kInterleaved> archiver(job, at, layer);
    if (is_key) {
      const auto first = static_cast<int32_t>(index % EightsOf(job)) * kPackedCodes;
      const int32_t left = job.frame.head_dim - first;
      archiver.Keys(first, left < kPackedCodes ? left : kPackedCodes);
    } else {
      archiver.Values(static_cast<int32_t>(token % job.page_tokens),
                      static_cast<int32_t>((index - of_keys) % GroupsOf(job)) * kv::kStepsGroup);
    }
  }
}

}  // namespace everlong::hip
