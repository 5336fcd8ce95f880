// Loops over a slab: `tokens` rows of `dim` contiguous elements, one head of one page. All that costs time in this
// layer is here. No alignment is asked of `void*` and `uint8_t*` arguments; buffers of one call do not overlap.
#pragma once

#include <cstdint>

#include "everlong/base/dtype.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv::slab {

struct Shape {
  int64_t tokens = 0;
  int32_t dim = 0;
  [[nodiscard]] int64_t size() const { return tokens * dim; }
};

// Between an element type and fp32, `count` elements; narrowing rounds to nearest even.
void Widen(const void* in, DType dtype, int64_t count, float* out);
void Narrow(const float* in, DType dtype, int64_t count, void* out);

// In place; cos, sin [tokens, half]. Elements from 2 * half on stay as they are.
void Rotate(float* rows, Shape shape, const float* cos, const float* sin, int32_t half, Pairing pairing);
void Unrotate(float* rows, Shape shape, const float* cos, const float* sin, int32_t half, Pairing pairing);

// In place; every row by the same cos, sin [half].
void RotateAll(float* rows, Shape shape, const float* cos, const float* sin, int32_t half, Pairing pairing);

// The largest MagnitudeBits (kv/element.h) of `count` elements; 0 for none.
uint32_t LargestMagnitudeBits(const float* in, int64_t count);

// GroupScale of every channel: scales [dim]; of every row: scales [tokens].
void ChannelScales(const float* rows, Shape shape, float format_max, float* scales);
void RowScales(const float* rows, Shape shape, float format_max, float* scales);

// FP8 codes of row * (1 / scale), scales [dim] or [tokens]; and back.
void EncodeByChannel(Codec codec, const float* rows, Shape shape, const float* scales, uint8_t* codes);
void EncodeByRow(Codec codec, const float* rows, Shape shape, const float* scales, uint8_t* codes);
void DecodeByChannel(Codec codec, const uint8_t* codes, Shape shape, const float* scales, float* rows);
void DecodeByRow(Codec codec, const uint8_t* codes, Shape shape, const float* scales, float* rows);

}  // namespace everlong::kv::slab
