// What one thread of restore_kv does, apart from the GPU. Host code compiles it too.
#pragma once

#include <cstdint>

#include "elements.h"
#include "everlong/kv/codec.h"
#include "everlong/kv/element.h"
#include "everlong/kv/position_phase.h"
#include "restore_kernels.h"
#include "row_units.h"

namespace everlong::hip {

// Phase `index` of the [tokens, half] of a placement.
EVERLONG_HD inline void PlacePhase(int64_t index, const kv::PagePlacement& place, const RestoreJob& job) {
  const int32_t half = job.phase.half;
  const kv::Phase phase = kv::PhaseAt(place.position + index / half, job.inv_freq[index % half], job.attention_scaling);
  const int64_t at = place.slot * half + index;
  job.phase.cos[at] = phase.c;
  job.phase.sin[at] = phase.s;
}

EVERLONG_HD inline int64_t UnitsOfPlacement(const kv::PagePlacement& place, const RestoreJob& job, int32_t half,
                                            int32_t width) {
  return static_cast<int64_t>(job.frame.layers) * job.frame.kv_heads * place.tokens *
         UnitsPerRow(job.frame.head_dim, half, width);
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
  EVERLONG_UNROLL
  for (int32_t i = 0; i < kWidth; ++i) {
    values[i] *= kv::FloatFromBits(LoadBytes<Float32Element, 1>(scales + 4 * static_cast<int64_t>(i)).bits[0]);
  }
}

// Unit `index` of the keys (kKeys) or values of a placement: layer, head, token and unit, the last fastest.
template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys>
EVERLONG_HD inline void RestoreUnit(int64_t index, const kv::PagePlacement& place, const RestoreJob& job) {
  const kv::FrameKv& frame = job.frame;
  const int32_t half = kKeys ? job.phase.half : 0;
  const int32_t units = UnitsPerRow(frame.head_dim, half, kWidth);
  const RowUnit unit = UnitOfRow(static_cast<int32_t>(index % units), half, kInterleaved, kWidth);
  const int64_t t = index / units % place.tokens;
  const int64_t head_of_all = index / units / place.tokens;
  const int64_t head = head_of_all % frame.kv_heads;
  const int64_t layer = head_of_all / frame.kv_heads;
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
