// The work of one thread in restore_kv. Host code compiles it too.
#pragma once

#include <cstdint>
#include <type_traits>

#include "divisor.h"
#include "elements.h"
#include "everlong/base/element.h"
#include "everlong/kv/codec.h"
#include "everlong/kv/position_phase.h"
#include "restore_kernels.h"
#include "row_units.h"

namespace everlong::hip {

// Rows are counted as if every placement had as many as the largest: [count, most_tokens].
struct PlacedRow {
  kv::PagePlacement place;
  int64_t t = 0;  // number within the placement; beyond its tokens there is no row

  EVERLONG_HD PlacedRow(int64_t row, const RestoreJob& job, const Divisor& by_tokens) {
    const int64_t number = by_tokens.Quotient(row);
    if (number >= job.count) return;
    place = job.placements[number];
    t = row - number * by_tokens.divisor();
  }
  [[nodiscard]] EVERLONG_HD bool exists() const { return t < place.tokens; }
};

// Compute phase `index` of [count, most_tokens, half].
EVERLONG_HD inline void PlacePhase(int64_t index, const RestoreJob& job, const Divisor& by_half,
                                   const Divisor& by_tokens) {
  const int64_t number = by_half.Quotient(index);
  const PlacedRow row(number, job, by_tokens);
  if (!row.exists()) return;
  const int64_t pair = index - number * by_half.divisor();
  const Phase phase = kv::PhaseAt(row.place.position + row.t, job.inv_freq[pair], job.attention_scaling);
  const int64_t at = (row.place.slot + row.t) * job.phase.half + pair;
  job.phase.cos[at] = phase.c;
  job.phase.sin[at] = phase.s;
}

// A unit of one row in every layer of a span, out of a payload. With kKeys it is keys, which have a scale a channel and
// may have a centre; else values, which have a scale a row, or with steps one a group. Code is how numbers are coded.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys, class Code>
class UnitRestorer {
 public:
  EVERLONG_HD UnitRestorer(const RestoreJob& job, const PlacedRow& row, RowUnit unit, const HeadLayers& span)
      : unit_(unit), layers_(span.end - span.first) {
    const kv::FrameKv& frame = job.frame;
    const kv::PartLayout layout{job.codec, frame.kv_heads, frame.head_dim, row.place.page_tokens};
    const int64_t page_row = row.place.first_token + row.t;
    const uint8_t* part = job.payload + row.place.byte_offset + span.first * layout.Bytes();
    in_stride_ = layout.Bytes();
    bits_ = kKeys ? kv::FormOf(job.codec).key_bits : kv::FormOf(job.codec).value_bits;
    codes_ = part + (kKeys ? layout.KCodes(span.head) + page_row * layout.KRow()
                           : layout.VCodes(span.head) + page_row * layout.VRow());
    if (!kSteps) codes_ += unit.d * kCodeBytes;
    scales_ = part + (kKeys ? layout.KScales(span.head) + 4 * unit.d
                            : layout.VScales(span.head) +
                                  4 * (page_row * layout.VGroups() + (kSteps ? unit.d / kv::kStepsGroup : 0)));
    if (kKeys && kv::FormOf(job.codec).centred) centres_ = part + layout.KCentres(span.head) + 2 * unit.d;
    out_ = static_cast<BitsOf<Element>*>(kKeys ? frame.k : frame.v) + span.first * frame.layer_stride +
           span.head * frame.head_stride + (row.place.slot + row.t) * frame.head_dim + unit.d;
    out_stride_ = frame.layer_stride;
    if (kKeys && unit.second != 0) {
      const int64_t phase = (row.place.slot + row.t) * job.phase.half + unit.pair;
      phase_ = LoadPhase<kWidth>(job.phase.cos + phase, job.phase.sin + phase);
    }
  }

  // Restore all of the layers.
  EVERLONG_HD void Run() const {
    if (IsAligned()) {
      RunAhead<true>();
    } else {
      RunAhead<false>();
    }
  }

 private:
  static constexpr int32_t kCodeBytes = sizeof(BitsOf<Code>);
  static constexpr bool kScaled = kCodeBytes == 1;
  static constexpr bool kSteps = std::is_same_v<Code, StepsElement>;
  static constexpr bool kMayHaveCentres = kKeys && kScaled && !kSteps;
  static constexpr int32_t kScales = kKeys ? (kWidth < 4 ? kWidth : 4) : 1;  // an access
  static constexpr int32_t kAccesses = kKeys ? kWidth / kScales : 1;
  using Codes = ElementVector<Code, kWidth>;
  using Scales = ElementVector<Float32Element, kScales>;
  using Centres = ElementVector<BFloat16Element, kWidth>;

  // A vector as the payload has it.
  struct Coded {
    Codes codes;
    Scales scales[kScaled ? kAccesses : 1];
    Centres centres;
  };
  struct CodedUnit {
    Coded first;
    Coded second;
  };

  [[nodiscard]] EVERLONG_HD bool IsAligned() const {
    const auto codes = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(codes_)) | static_cast<uint64_t>(in_stride_);
    const auto scales = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(scales_)) | static_cast<uint64_t>(in_stride_);
    return (kSteps || codes % sizeof(Codes) == 0) && (!kScaled || scales % sizeof(Scales) == 0);
  }

  // Load the vector that lies `number` numbers behind the unit's first.
  template <bool kAligned>
  EVERLONG_HD Coded Load(int32_t layer, int32_t number) const {
    const uint8_t* const codes = codes_ + layer * in_stride_ + (kSteps ? 0 : number * kCodeBytes);
    const uint8_t* const scales = scales_ + layer * in_stride_ + int64_t{4} * number;
    Coded coded{};
    if constexpr (kSteps) {
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kWidth; ++i) {
        coded.codes.bits[i] = static_cast<uint8_t>(PackedCode(codes, unit_.d + number + i, bits_));
      }
    } else if constexpr (kAligned) {
      coded.codes = Loaded<Codes>(codes);
    } else {
      coded.codes = LoadBytes<Code, kWidth>(codes);
    }
    if constexpr (kMayHaveCentres) {
      const uint8_t* const centres = centres_ + layer * in_stride_ + int64_t{2} * number;
      if (centres_ != nullptr) coded.centres = LoadBytes<BFloat16Element, kWidth>(centres);
    }
    if constexpr (kScaled) {
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kAccesses; ++i) {
        const uint8_t* at = scales + 4 * kScales * i;
        if constexpr (kAligned) {
          coded.scales[i] = *static_cast<const Scales*>(static_cast<const void*>(at));
        } else {
          coded.scales[i] = LoadBytes<Float32Element, kScales>(at);
        }
      }
    }
    return coded;
  }

  EVERLONG_HD void Decode(const Coded& coded, float* values) const {
    WidenVector(coded.codes, values);
    if constexpr (kScaled) {
      float centres[kWidth];
      WidenVector(coded.centres, centres);
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kWidth; ++i) {
        const uint32_t scale = coded.scales[kKeys ? i / kScales : 0].bits[kKeys ? i % kScales : 0];
        if constexpr (kSteps) {
          values[i] = values[i] * StepOf(scale) + LeastOf(scale, bits_);
          if constexpr (!kKeys && std::is_same_v<Element, Float16Element>) values[i] = WithinFloat16(values[i]);
        } else {
          values[i] *= FloatFromBits(scale);
          if (kMayHaveCentres && centres_ != nullptr) values[i] += centres[i];
        }
      }
    }
  }

  template <bool kAligned>
  EVERLONG_HD void RunAhead() const {
    const auto load = [&](int32_t layer, int32_t number) { return Load<kAligned>(layer, number); };
    if (!kKeys || unit_.second == 0) {
      ForEachLoaded<kAligned ? kPlainAhead : 1>(
          layers_, [&](int32_t layer) { return load(layer, 0); },
          [&](int32_t layer, const Coded& coded) {
            float values[kWidth];
            Decode(coded, values);
            Store(NarrowVector<Element, kWidth>(values), out_ + layer * out_stride_);
          });
      return;
    }
    ForEachLoaded<kAligned ? kTurnedAhead : 1>(
        layers_, [&](int32_t layer) { return CodedUnit{load(layer, 0), load(layer, unit_.second)}; },
        [&](int32_t layer, const CodedUnit& coded) {
          UnitValues<kWidth> values;
          Decode(coded.first, values.first());
          Decode(coded.second, values.second());
          TurnUnit<kInterleaved>(values, phase_);
          StoreUnit<Element>(values, out_ + layer * out_stride_, unit_.second);
        });
  }

  RowUnit unit_;
  int32_t layers_;
  const uint8_t* codes_;
  const uint8_t* scales_;
  const uint8_t* centres_ = nullptr;  // nullptr: none
  int32_t bits_ = 8;                  // of a code of steps
  int64_t in_stride_;                 // bytes between layers
  BitsOf<Element>* out_;
  int64_t out_stride_;
  UnitPhase<kWidth> phase_{};
};

// `index` counts the units of the rows. `by_units` divides by the units of one row.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys, class Code>
EVERLONG_HD inline void RestoreUnits(int64_t index, const HeadLayers& span, const RestoreJob& job,
                                     const Divisor& by_units, const Divisor& by_tokens) {
  const int64_t number = by_units.Quotient(index);
  const PlacedRow row(number, job, by_tokens);
  if (!row.exists()) return;
  const auto of_row = static_cast<int32_t>(index - number * by_units.divisor());
  const RowUnit unit = UnitOfRow(of_row, kKeys ? job.phase.half : 0, kInterleaved, kWidth);
  UnitRestorer<Element, kWidth, kInterleaved, kKeys, Code>(job, row, unit, span).Run();
}

}  // namespace everlong::hip
