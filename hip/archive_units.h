// What the threads of one block do in archive_kv: the block encodes one head of one page of one layer in phases, with
// all threads waiting for each other between two of them. Host code compiles it too and runs the phases thread by
// thread.
#pragma once

#include <cstdint>

#include "archive_kernels.h"
#include "atomics.h"
#include "elements.h"
#include "everlong/kv/codec.h"
#include "everlong/kv/element.h"
#include "row_units.h"

namespace everlong::hip {

EVERLONG_HD inline int64_t PagesOf(const ArchiveJob& job) {
  return (job.tokens + job.page_tokens - 1) / job.page_tokens;
}

// Blocks of threads: (page, layer, head), the head fastest.
EVERLONG_HD inline int64_t TasksOf(const ArchiveJob& job) {
  return PagesOf(job) * job.frame.layers * job.frame.kv_heads;
}

// One head of one page of one layer: its rows in the frame, its bytes in the payload.
struct HeadPage {
  kv::PartLayout layout;  // of the part: a last page may hold fewer tokens
  int64_t task = 0;
  int64_t head = 0;
  int64_t row = 0;          // of its first key and value in frame.k and frame.v, in elements
  int64_t first_token = 0;  // of the span
  uint8_t* part = nullptr;
};

EVERLONG_HD inline HeadPage HeadPageAt(const ArchiveJob& job, int64_t task) {
  const kv::FrameKv& frame = job.frame;
  HeadPage at;
  at.task = task;
  at.head = task % frame.kv_heads;
  const int64_t layer = task / frame.kv_heads % frame.layers;
  const int64_t page = task / frame.kv_heads / frame.layers;
  at.first_token = page * job.page_tokens;
  const int64_t left = job.tokens - at.first_token;
  at.layout = {job.codec, frame.kv_heads, frame.head_dim,
               static_cast<int32_t>(left < job.page_tokens ? left : job.page_tokens)};
  const kv::PartLayout full{job.codec, frame.kv_heads, frame.head_dim, job.page_tokens};
  at.part = job.payload + page * frame.layers * full.Bytes() + layer * at.layout.Bytes();
  at.row = layer * frame.layer_stride + at.head * frame.head_stride +
           (job.first_slot + at.first_token) * static_cast<int64_t>(frame.head_dim);
  return at;
}

// Number d of token t: counts through the payload, keys of a head before its values.
EVERLONG_HD inline uint64_t IndexOfNumber(const ArchiveJob& job, int64_t task, bool is_key, int64_t t, int64_t d) {
  const int64_t side = 2 * task + (is_key ? 0 : 1);
  return static_cast<uint64_t>((side * job.page_tokens + t) * job.frame.head_dim + d);
}

struct NumberPlace {
  int64_t task = 0;
  bool is_key = true;
  int64_t t = 0;
  int32_t d = 0;
};

EVERLONG_HD inline NumberPlace PlaceOfNumber(const ArchiveJob& job, uint64_t index) {
  const auto number = static_cast<int64_t>(index);
  const int64_t row = number / job.frame.head_dim;
  const int64_t side = row / job.page_tokens;
  return {side / 2, side % 2 == 0, row % job.page_tokens, static_cast<int32_t>(number % job.frame.head_dim)};
}

// Phase `index` of the [tokens, half] of the span, inverted: [cos | sin].
EVERLONG_HD inline void InvertPhase(int64_t index, const ArchiveJob& job) {
  const int64_t at = job.first_slot * job.phase.half + index;
  const kv::Phase inverse = kv::InversePhase({job.phase.cos[at], job.phase.sin[at]});
  job.inverse[index] = inverse.c;
  job.inverse[job.tokens * job.phase.half + index] = inverse.s;
}

// 32-bit words that the threads of a block share: a largest magnitude, later 1 / scale, for every channel of K and
// every token of V.
EVERLONG_HD inline int32_t SharedWords(const ArchiveJob& job) { return job.frame.head_dim + job.page_tokens; }

// kWidth numbers an access of the frame; kInterleaved is job.interleaved.
template <class Element, int32_t kWidth, bool kInterleaved>
class HeadPageArchiver {
 public:
  EVERLONG_HD HeadPageArchiver(const ArchiveJob& job, int64_t task, uint32_t* shared, int32_t thread, int32_t threads)
      : job_(job),
        at_(HeadPageAt(job, task)),
        channels_(shared),
        tokens_(shared + job.frame.head_dim),
        thread_(thread),
        threads_(threads) {}

  // The phases, in order. Without scales only the last is needed.
  EVERLONG_HD void Clear() const {
    for (int32_t i = thread_; i < SharedWords(job_); i += threads_) channels_[i] = 0;
  }

  EVERLONG_HD void Measure() const {
    ForUnits<true>([this](const Column& column, RowUnit unit) { MeasureColumn<true>(column, unit); });
    ForUnits<false>([this](const Column& column, RowUnit unit) { MeasureColumn<false>(column, unit); });
  }

  EVERLONG_HD void StoreScales() const {
    StoreScales(channels_, at_.layout.head_dim, at_.part + at_.layout.KScales(at_.head));
    StoreScales(tokens_, at_.layout.tokens, at_.part + at_.layout.VScales(at_.head));
  }

  EVERLONG_HD void Encode() const {
    ForUnits<true>([this](const Column& column, RowUnit unit) { EncodeColumn<true>(column, unit); });
    ForUnits<false>([this](const Column& column, RowUnit unit) { EncodeColumn<false>(column, unit); });
  }

 private:
  // Rows of the page that the thread handles of one unit.
  struct Column {
    int32_t first = 0;
    int32_t step = 0;
  };

  template <bool kKeys>
  [[nodiscard]] EVERLONG_HD int32_t Half() const {
    return kKeys ? job_.phase.half : 0;
  }

  // Threads of a warp stand side by side in a row; each keeps its unit over the rows, hence its channels.
  template <bool kKeys, class Body>
  EVERLONG_HD void ForUnits(const Body& body) const {
    const int32_t units = UnitsPerRow(job_.frame.head_dim, Half<kKeys>(), kWidth);
    const int32_t columns = units < threads_ ? units : threads_;
    const int32_t rows = threads_ / columns;
    if (thread_ >= columns * rows) return;
    for (int32_t unit = thread_ % columns; unit < units; unit += columns) {
      body(Column{thread_ / columns, rows}, UnitOfRow(unit, Half<kKeys>(), kInterleaved, kWidth));
    }
  }

  // Un-rotated keys, or values, as they are.
  template <bool kKeys>
  [[nodiscard]] EVERLONG_HD UnitValues<kWidth> Load(int32_t t, RowUnit unit) const {
    const int64_t row = at_.row + static_cast<int64_t>(t) * job_.frame.head_dim;
    if constexpr (!kKeys) return LoadUnit<Element, kWidth>(job_.frame.v, row, unit);
    UnitValues<kWidth> keys = LoadUnit<Element, kWidth>(job_.frame.k, row, unit);
    const float* cos = job_.inverse + (at_.first_token + t) * job_.phase.half + unit.pair;
    TurnUnit<kInterleaved>(keys, unit, cos, cos + job_.tokens * job_.phase.half);
    return keys;
  }

  // The largest magnitude of a vector whose first number is d; reports what the codec cannot hold.
  template <bool kKeys>
  EVERLONG_HD uint32_t LargestOf(const float* values, int32_t t, int32_t d) const {
    uint32_t largest = 0;
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth; ++i) {
      const uint32_t bits = kv::MagnitudeBits(values[i]);
      largest = bits > largest ? bits : largest;
    }
    if (largest < kv::RejectedBits(job_.codec)) return largest;
    for (int32_t i = kWidth - 1; i >= 0; --i) {
      if (kv::MagnitudeBits(values[i]) < kv::RejectedBits(job_.codec)) continue;
      AtomicMin(&job_.rejected->index, IndexOfNumber(job_, at_.task, kKeys, t, d + i));
    }
    return largest;
  }

  // largest[i] grows to the magnitude of values[i].
  EVERLONG_HD static void Grow(const float* values, uint32_t (&largest)[kWidth]) {
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth; ++i) {
      const uint32_t bits = kv::MagnitudeBits(values[i]);
      largest[i] = bits > largest[i] ? bits : largest[i];
    }
  }

  template <bool kKeys>
  EVERLONG_HD void MeasureColumn(const Column& column, RowUnit unit) const {
    uint32_t first[kWidth] = {};
    uint32_t second[kWidth] = {};
    for (int32_t t = column.first; t < at_.layout.tokens; t += column.step) {
      UnitValues<kWidth> values = Load<kKeys>(t, unit);
      const uint32_t largest = LargestOf<kKeys>(values.first(), t, unit.d);
      if constexpr (!kKeys) {
        AtomicMax(&tokens_[t], largest);
      } else {
        Grow(values.first(), first);
        if (unit.second == 0) continue;
        LargestOf<kKeys>(values.second(), t, unit.d + unit.second);
        Grow(values.second(), second);
      }
    }
    if constexpr (kKeys) {
      JoinChannels(first, unit.d);
      if (unit.second != 0) JoinChannels(second, unit.d + unit.second);
    }
  }

  EVERLONG_HD void JoinChannels(const uint32_t (&largest)[kWidth], int32_t d) const {
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth; ++i) AtomicMax(&channels_[d + i], largest[i]);
  }

  EVERLONG_HD void StoreScales(uint32_t* words, int32_t count, uint8_t* out) const {
    for (int32_t i = thread_; i < count; i += threads_) {
      const float scale = kv::GroupScale(kv::FloatFromBits(words[i]), kv::FormatMax(job_.codec));
      StoreBytes<Float32Element, 1>({{kv::FloatBits(scale)}}, out + 4 * static_cast<int64_t>(i));
      words[i] = kv::FloatBits(1.0F / scale);
    }
  }

  template <bool kKeys>
  EVERLONG_HD void EncodeColumn(const Column& column, RowUnit unit) const {
    for (int32_t t = column.first; t < at_.layout.tokens; t += column.step) {
      UnitValues<kWidth> values = Load<kKeys>(t, unit);
      EncodeVector<kKeys>(values.first(), t, unit.d);
      if (unit.second != 0) EncodeVector<kKeys>(values.second(), t, unit.d + unit.second);
    }
  }

  template <bool kKeys>
  EVERLONG_HD void EncodeVector(const float* values, int32_t t, int32_t d) const {
    float scaled[kWidth];
    if (kv::HasScales(job_.codec)) {
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kWidth; ++i) {
        scaled[i] = values[i] * kv::FloatFromBits(kKeys ? channels_[d + i] : tokens_[t]);
      }
    } else {
      LargestOf<kKeys>(values, t, d);
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kWidth; ++i) scaled[i] = values[i];
    }
    const int64_t codes = kKeys ? at_.layout.KCodes(at_.head) : at_.layout.VCodes(at_.head);
    const int64_t number = static_cast<int64_t>(t) * at_.layout.head_dim + d;
    uint8_t* out = at_.part + codes + number * kv::CodeBytes(job_.codec);
    WithCode(job_.codec, [&](auto code) { StoreBytes(NarrowVector<decltype(code), kWidth>(scaled), out); });
  }

  const ArchiveJob& job_;
  HeadPage at_;
  uint32_t* channels_;  // [D]
  uint32_t* tokens_;    // [page_tokens]
  int32_t thread_;
  int32_t threads_;
};

// What RejectedNumber::index stands for.
struct RejectedPlace {
  bool is_key = true;
  int64_t layer = 0;
  int64_t head = 0;
  int64_t token = 0;  // of the span
};

inline RejectedPlace PlaceOfRejected(const ArchiveJob& job, uint64_t index) {
  const NumberPlace place = PlaceOfNumber(job, index);
  const int64_t page = place.task / job.frame.kv_heads / job.frame.layers;
  return {place.is_key, place.task / job.frame.kv_heads % job.frame.layers, place.task % job.frame.kv_heads,
          page * job.page_tokens + place.t};
}

// Fills in rejected->value, by one thread after all others.
template <class Element, bool kInterleaved>
EVERLONG_HD inline void ReadRejected(const ArchiveJob& job) {
  if (job.rejected->index == RejectedNumber::kNone) return;
  const NumberPlace place = PlaceOfNumber(job, job.rejected->index);
  const HeadPage at = HeadPageAt(job, place.task);
  const int64_t row = at.row + place.t * job.frame.head_dim;
  const int32_t half = place.is_key ? job.phase.half : 0;
  const int32_t rotated = kInterleaved ? place.d / 2 : place.d % (half > 0 ? half : 1);
  const RowUnit unit = UnitOfRow(place.d < 2 * half ? rotated : place.d - half, half, kInterleaved, 1);
  UnitValues<1> values = LoadUnit<Element, 1>(place.is_key ? job.frame.k : job.frame.v, row, unit);
  const float* cos = job.inverse + (at.first_token + place.t) * job.phase.half + unit.pair;
  TurnUnit<kInterleaved>(values, unit, cos, cos + job.tokens * job.phase.half);
  job.rejected->value = unit.d == place.d ? values.numbers[0] : values.numbers[1];
}

}  // namespace everlong::hip
