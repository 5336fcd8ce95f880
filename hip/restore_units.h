// What one thread of restore_kv does, apart from the GPU. Host code compiles it too.
#pragma once

#include <cstdint>

#include "divisor.h"
#include "elements.h"
#include "everlong/kv/codec.h"
#include "everlong/kv/element.h"
#include "everlong/kv/position_phase.h"
#include "restore_kernels.h"
#include "row_units.h"

namespace everlong::hip {

// Phase `index` of the [tokens, half] of a placement.
EVERLONG_HD inline void PlacePhase(int64_t index, const kv::PagePlacement& place, const RestoreJob& job,
                                   const Divisor& by_half) {
  const int64_t t = by_half.Quotient(index);
  const double frequency = job.inv_freq[index - t * by_half.divisor()];
  const kv::Phase phase = kv::PhaseAt(place.position + t, frequency, job.attention_scaling);
  const int64_t at = place.slot * job.phase.half + index;
  job.phase.cos[at] = phase.c;
  job.phase.sin[at] = phase.s;
}

// Units of every placement, as many as the largest has: layer, head, token and unit, the last fastest.
EVERLONG_HD inline int64_t UnitsOfPlacement(const RestoreJob& job, int32_t half, int32_t width) {
  return static_cast<int64_t>(job.frame.layers) * job.frame.kv_heads * job.most_tokens *
         UnitsPerRow(job.frame.head_dim, half, width);
}

// What an index of a unit is divided by: the same for all placements.
struct RestoreDivisors {
  Divisor units;  // of a row
  Divisor tokens;
  Divisor heads;
};
inline RestoreDivisors DivisorsOf(const RestoreJob& job, int32_t half, int32_t width) {
  return {Divisor(UnitsPerRow(job.frame.head_dim, half, width)), Divisor(job.most_tokens), Divisor(job.frame.kv_heads)};
}

// kWidth numbers of a part, decoded: number `first` on of the codes at `codes`, by scales that are `scale_step` floats
// apart (1: of every channel; 0: of the token).
template <int32_t kWidth>
EVERLONG_HD inline void DecodeVector(kv::Codec codec, const uint8_t* codes, int64_t first, const uint8_t* scales,
                                     int32_t scale_step, float* values) {
  WithCode(codec, [&](auto code) {
    using Code = decltype(code);
    WidenVector(LoadBytes<Code, kWidth>(codes + first * static_cast<int64_t>(sizeof(BitsOf<Code>))), values);
  });
  if (!kv::HasScales(codec)) return;
  if (scale_step == 0) {
    const float scale = kv::FloatFromBits(LoadBytes<Float32Element, 1>(scales).bits[0]);
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth; ++i) values[i] *= scale;
    return;
  }
  constexpr int32_t kScales = kWidth < kVectorWidth<Float32Element> ? kWidth : kVectorWidth<Float32Element>;
  EVERLONG_UNROLL
  for (int32_t first_scale = 0; first_scale < kWidth; first_scale += kScales) {
    const auto vector = LoadBytes<Float32Element, kScales>(scales + 4 * static_cast<int64_t>(first_scale));
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kScales; ++i) values[first_scale + i] *= kv::FloatFromBits(vector.bits[i]);
  }
}

// Unit `index` of the keys (kKeys) or values of a placement; nothing where the largest placement alone has one.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys>
EVERLONG_HD inline void RestoreUnit(int64_t index, const kv::PagePlacement& place, const RestoreJob& job,
                                    const RestoreDivisors& by) {
  const kv::FrameKv& frame = job.frame;
  const int32_t half = kKeys ? job.phase.half : 0;
  const int64_t row = by.units.Quotient(index);
  const int64_t head_of_all = by.tokens.Quotient(row);
  const int64_t t = row - head_of_all * by.tokens.divisor();
  if (t >= place.tokens) return;
  const auto of_row = static_cast<int32_t>(index - row * by.units.divisor());
  const RowUnit unit = UnitOfRow(of_row, half, kInterleaved, kWidth);
  const int64_t layer = by.heads.Quotient(head_of_all);
  const int64_t head = head_of_all - layer * by.heads.divisor();
  const int64_t page_row = place.first_token + t;

  const kv::PartLayout layout{job.codec, frame.kv_heads, frame.head_dim, place.page_tokens};
  const uint8_t* part = job.payload + place.byte_offset + layer * layout.Bytes();
  const uint8_t* codes = part + (kKeys ? layout.KCodes(head) : layout.VCodes(head));
  const int64_t number = page_row * frame.head_dim + unit.d;
  const uint8_t* scales = part + (kKeys ? layout.KScales(head) + 4 * unit.d : layout.VScales(head) + 4 * page_row);
  const int32_t scale_step = kKeys ? 1 : 0;
  UnitValues<kWidth> values;
  DecodeVector<kWidth>(job.codec, codes, number, scales, scale_step, values.first());

  void* base = kKeys ? frame.k : frame.v;
  const int64_t out =
      layer * frame.layer_stride + head * frame.head_stride + (place.slot + t) * frame.head_dim + unit.d;
  if (kKeys && unit.second != 0) {
    DecodeVector<kWidth>(job.codec, codes, number + unit.second, scales + 4 * static_cast<int64_t>(unit.second),
                         scale_step, values.second());
    const int64_t phase = (place.slot + t) * half + unit.pair;
    TurnUnit<kInterleaved>(values, unit, job.phase.cos + phase, job.phase.sin + phase);
    StoreVector(NarrowVector<Element, kWidth>(values.second()), base, out + unit.second);
  }
  StoreVector(NarrowVector<Element, kWidth>(values.first()), base, out);
}

}  // namespace everlong::hip
