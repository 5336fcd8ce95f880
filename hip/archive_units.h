// The work of one thread in archive_kv. With a codec without scales each thread works alone. With scales the threads of
// a block encode one head of a page in steps, and all wait for each other between two steps. Host code compiles it too,
// and runs the steps thread by thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "archive_kernels.h"
#include "atomics.h"
#include "divisor.h"
#include "elements.h"
#include "everlong/base/element.h"
#include "everlong/kv/codec.h"
#include "row_units.h"

namespace everlong::hip {

EVERLONG_HD inline int64_t PagesOf(const ArchiveJob& job) {
  return (job.tokens + job.page_tokens - 1) / job.page_tokens;
}

// One head of one page: its rows in the frame and its bytes in the payload, layer by layer.
struct HeadPage {
  kv::PartLayout layout;  // of the parts: a last page may hold fewer tokens
  int32_t head = 0;
  int64_t row = 0;          // of its first key and value in frame.k and frame.v, in elements, in layer 0
  int64_t first_token = 0;  // number within the span
  uint8_t* part = nullptr;  // of layer 0
};

EVERLONG_HD inline HeadPage HeadPageAt(const ArchiveJob& job, int64_t page, int32_t head) {
  const kv::FrameKv& frame = job.frame;
  HeadPage at;
  at.head = head;
  at.first_token = page * job.page_tokens;
  const int64_t left = job.tokens - at.first_token;
  at.layout = {job.codec, frame.kv_heads, frame.head_dim,
               static_cast<int32_t>(left < job.page_tokens ? left : job.page_tokens)};
  const kv::PartLayout full{job.codec, frame.kv_heads, frame.head_dim, job.page_tokens};
  at.part = job.payload + page * frame.layers * full.Bytes();
  at.row = head * frame.head_stride + (job.first_slot + at.first_token) * static_cast<int64_t>(frame.head_dim);
  return at;
}

EVERLONG_HD inline kv::PayloadSizes SizesOf(const ArchiveJob& job) {
  return {job.frame.layers, job.frame.kv_heads, job.frame.head_dim, job.page_tokens};
}

// Return the inverse phase of a unit's pairs for token `t` of the span.
template <int32_t kWidth>
EVERLONG_HD inline UnitPhase<kWidth> InversePhaseAt(const ArchiveJob& job, int64_t t, RowUnit unit) {
  const int64_t at = (job.first_slot + t) * job.phase.half + unit.pair;
  return InverseOf(LoadPhase<kWidth>(job.phase.cos + at, job.phase.sin + at));
}

// Record the first of kWidth numbers that the codec cannot hold, if there is one. They start at number d of token t.
template <int32_t kWidth>
EVERLONG_HD inline void RejectFirst(const float* values, const ArchiveJob& job, const HeadPage& at, int32_t layer,
                                    bool is_key, int64_t t, int64_t d) {
  int32_t first = kWidth;
  EVERLONG_UNROLL
  for (int32_t i = kWidth - 1; i >= 0; --i) {
    if (MagnitudeBits(values[i]) >= kv::RejectedBits(job.codec)) first = i;
  }
  if (first == kWidth) return;
  const kv::NumberPlace place{is_key, layer, at.head, at.first_token + t, static_cast<int32_t>(d + first)};
  AtomicMin(&job.rejected->index, kv::IndexOfNumber(SizesOf(job), place));
}

template <int32_t kWidth>
EVERLONG_HD inline uint32_t LargestOf(const float* values) {
  uint32_t largest = 0;
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) largest = LargerMagnitude(largest, values[i]);
  return largest;
}

// --- codecs without scales

// A unit of one row in every layer of a span: un-rotated keys (kKeys), or values. Code is how numbers are coded.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys, class Code>
class UnitArchiver {
 public:
  // For token t of the span.
  EVERLONG_HD UnitArchiver(const ArchiveJob& job, int64_t t, RowUnit unit, const HeadLayers& span,
                           const Divisor& by_page)
      : job_(job),
        at_(HeadPageAt(job, by_page.Quotient(t), span.head)),
        t_(t - at_.first_token),
        unit_(unit),
        span_(span) {
    const kv::FrameKv& frame = job.frame;
    const int64_t number = t_ * frame.head_dim + unit.d;
    in_ = static_cast<const BitsOf<Element>*>(kKeys ? frame.k : frame.v) + span.first * frame.layer_stride + at_.row +
          number;
    out_stride_ = at_.layout.Bytes();
    out_ = at_.part + span.first * out_stride_ + (kKeys ? at_.layout.KCodes(span.head) : at_.layout.VCodes(span.head)) +
           number * static_cast<int64_t>(sizeof(BitsOf<Code>));
    if (kKeys && unit.second != 0) phase_ = InversePhaseAt<kWidth>(job, t, unit);
  }

  // Encode all of the layers.
  EVERLONG_HD void Run() const {
    const auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(out_)) | static_cast<uint64_t>(out_stride_);
    if (bits % sizeof(Codes) == 0) {
      RunAhead<true>();
    } else {
      RunAhead<false>();
    }
  }

 private:
  using Codes = ElementVector<Code, kWidth>;
  using Stored = StoredUnit<Element, kWidth>;

  template <bool kAligned>
  EVERLONG_HD void RunAhead() const {
    const int32_t second = kKeys ? unit_.second : 0;
    const auto load = [&](int32_t i) { return LoadUnit<Element, kWidth>(in_ + i * job_.frame.layer_stride, second); };
    if (second == 0) {
      ForEachLoaded<kAligned ? kPlainAhead : 1>(span_.end - span_.first, load, [&](int32_t i, const Stored& stored) {
        float values[kWidth];
        WidenVector(stored.first, values);
        Encode<kAligned>(values, i, 0);
      });
      return;
    }
    ForEachLoaded<kAligned ? kTurnedAhead : 1>(span_.end - span_.first, load, [&](int32_t i, const Stored& stored) {
      UnitValues<kWidth> values = WidenUnit(stored);
      TurnUnit<kInterleaved>(values, phase_);
      Encode<kAligned>(values.first(), i, 0);
      Encode<kAligned>(values.second(), i, second);
    });
  }

  // Encode the vector that lies `number` numbers behind the unit's first.
  template <bool kAligned>
  EVERLONG_HD void Encode(const float* values, int32_t i, int32_t number) const {
    if (LargestOf<kWidth>(values) >= kv::RejectedBits(job_.codec)) {
      RejectFirst<kWidth>(values, job_, at_, span_.first + i, kKeys, t_, unit_.d + number);
    }
    uint8_t* out = out_ + i * out_stride_ + number * static_cast<int64_t>(sizeof(BitsOf<Code>));
    const Codes codes = NarrowVector<Code, kWidth>(values);
    if constexpr (kAligned) {
      Store(codes, out);
    } else {
      StoreBytes(codes, out);
    }
  }

  const ArchiveJob& job_;
  HeadPage at_;
  int64_t t_;  // of the page
  RowUnit unit_;
  HeadLayers span_;
  const BitsOf<Element>* in_;
  uint8_t* out_;
  int64_t out_stride_;  // bytes between layers
  UnitPhase<kWidth> phase_{};
};

// `index` counts the units of the rows. `by_units` divides by the units of one row.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys, class Code>
EVERLONG_HD inline void ArchiveUnits(int64_t index, const HeadLayers& span, const ArchiveJob& job,
                                     const Divisor& by_units, const Divisor& by_page) {
  const int64_t t = by_units.Quotient(index);
  if (t >= job.tokens) return;
  const auto of_row = static_cast<int32_t>(index - t * by_units.divisor());
  const RowUnit unit = UnitOfRow(of_row, kKeys ? job.phase.half : 0, kInterleaved, kWidth);
  UnitArchiver<Element, kWidth, kInterleaved, kKeys, Code>(job, t, unit, span, by_page).Run();
}

// --- codecs with scales: one block of threads encodes one part of a head's page, layer after layer. Keys have a scale
// a channel, so a part of them is some channels of all tokens. Values have a scale a token, so a part of them is all
// channels of some tokens. A thread reads its numbers once, and keeps them until their scales are known.

inline constexpr int32_t kPageThreads = 256;  // at most

// Rows of a part that a thread has a unit of. They are as many numbers of keys as of values.
inline constexpr int32_t kKeyRows = 2;
inline constexpr int32_t kValueRows = 2 * kKeyRows;

// Return whether every vector of a row has a column. Parts with more than one number an access need that.
inline bool AllowsColumns(const ArchiveJob& job, int32_t width) { return job.frame.head_dim / width <= kPageThreads; }

// Threads are arranged in columns, one a unit, of so many lanes.
struct PageParts {
  int32_t threads = 0;
  int32_t key_lanes = 0;
  int32_t key_columns = 0;
  int32_t key_parts = 0;
  int32_t value_lanes = 0;
  int32_t value_columns = 0;
  int32_t value_parts = 0;
  int32_t shared_words = 0;

  [[nodiscard]] EVERLONG_HD int32_t parts() const { return key_parts + value_parts; }
};

inline int32_t RoundedUp(int32_t number, int32_t to) { return (number + to - 1) / to * to; }

static_assert(kMostPageTokens <= kPageThreads * kKeyRows);
template <int32_t kWidth>
PageParts PartsOfPage(const ArchiveJob& job) {
  constexpr int32_t kWarp = 64;  // the wider of both vendors'
  constexpr int32_t kNumbers = 2 * kWidth;
  const int32_t units = UnitsPerRow(job.frame.head_dim, job.phase.half, kWidth);
  const int32_t vectors = UnitsPerRow(job.frame.head_dim, 0, kWidth);
  PageParts parts;
  parts.key_lanes = (job.page_tokens + kKeyRows - 1) / kKeyRows;
  parts.key_columns = std::min({units, kPageThreads / parts.key_lanes, kPageThreads / kNumbers});
  parts.key_parts = (units + parts.key_columns - 1) / parts.key_columns;
  parts.value_columns = std::min(vectors, kPageThreads);
  const int32_t threads = std::max(parts.key_columns * std::max(parts.key_lanes, kNumbers), parts.value_columns);
  parts.threads = RoundedUp(threads, kWarp);
  parts.value_lanes = parts.threads / parts.value_columns;
  const int32_t rows = parts.value_lanes * kValueRows;
  parts.value_parts = (job.page_tokens + rows - 1) / rows;
  const int32_t key_words = 2 * kNumbers * parts.key_columns * (parts.key_lanes + 1);
  const int32_t value_words = rows * ((parts.value_columns | 1) + 1);
  parts.shared_words = std::max(key_words, value_words);
  return parts;
}

// The common base of both kinds of parts.
template <class Code>
class PagePart {
 public:
  EVERLONG_HD PagePart(const ArchiveJob& job, const HeadPage& at) : job_(job), at_(at) {}

 protected:
  // Return the part of the layer.
  [[nodiscard]] EVERLONG_HD uint8_t* Part(int32_t layer) const { return at_.part + layer * at_.layout.Bytes(); }

  // Store the scale of a group, and return 1 / scale as bits.
  [[nodiscard]] EVERLONG_HD uint32_t StoreScale(uint32_t largest, uint8_t* out) const {
    const float scale = GroupScale(FloatFromBits(largest), kv::FormatMax(job_.codec));
    StoreBytes<Float32Element, 1>({{FloatBits(scale)}}, out);
    return FloatBits(1.0F / scale);
  }

  template <int32_t kWidth>
  EVERLONG_HD static void StoreCodes(const float* scaled, uint8_t* out) {
    const auto codes = NarrowVector<Code, kWidth>(scaled);
    if (reinterpret_cast<uintptr_t>(out) % sizeof(codes) == 0) {
      Store(codes, out);
    } else {
      StoreBytes(codes, out);
    }
  }

  const ArchiveJob& job_;
  HeadPage at_;
};

// Return one number without rotation.
template <class Element, bool kInterleaved>
EVERLONG_HD inline float NumberAt(const ArchiveJob& job, const kv::NumberPlace& at) {
  const kv::FrameKv& frame = job.frame;
  const int64_t row = at.layer * frame.layer_stride + at.head * frame.head_stride +
                      (job.first_slot + at.token) * static_cast<int64_t>(frame.head_dim);
  const int32_t half = at.is_key ? job.phase.half : 0;
  const int32_t rotated = kInterleaved ? at.d / 2 : at.d % (half > 0 ? half : 1);
  const RowUnit unit = UnitOfRow(at.d < 2 * half ? rotated : at.d - half, half, kInterleaved, 1);
  const auto* numbers = static_cast<const BitsOf<Element>*>(at.is_key ? frame.k : frame.v) + row;
  UnitValues<1> values = WidenUnit(LoadUnit<Element, 1>(numbers + unit.d, unit.second));
  if (unit.second != 0) TurnUnit<kInterleaved>(values, InversePhaseAt<1>(job, at.token, unit));
  return unit.d == at.d ? values.numbers[0] : values.numbers[1];
}

// Fill in rejected->value. One thread calls it after all others.
template <class Element, bool kInterleaved>
EVERLONG_HD inline void ReadRejected(const ArchiveJob& job) {
  if (job.rejected->index == RejectedNumber::kNone) return;
  const kv::NumberPlace at = kv::PlaceOfNumber(SizesOf(job), job.rejected->index);
  job.rejected->value = NumberAt<Element, kInterleaved>(job, at);
}

}  // namespace everlong::hip
