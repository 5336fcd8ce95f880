#include "slab.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "everlong/kv/element.h"
#include "simd_clones.h"

namespace everlong::kv::slab {
namespace {

// `bytes` may be unaligned: the copy compiles to a plain load or store.
template <class T>
inline T Load(const unsigned char* bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
inline void Store(unsigned char* bytes, int64_t index, T value) {
  std::memcpy(bytes + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

EVERLONG_SIMD_CLONES void WidenBFloat16(const unsigned char* __restrict in, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = BFloat16ToFloat(Load<uint16_t>(in, i));
}

EVERLONG_SIMD_CLONES void WidenFloat16(const unsigned char* __restrict in, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Float16ToFloat(Load<uint16_t>(in, i));
}

EVERLONG_SIMD_CLONES void NarrowBFloat16(const float* __restrict in, int64_t count, unsigned char* __restrict out) {
  for (int64_t i = 0; i < count; ++i) Store(out, i, FloatToBFloat16(in[i]));
}

EVERLONG_SIMD_CLONES void NarrowFloat16(const float* __restrict in, int64_t count, unsigned char* __restrict out) {
  for (int64_t i = 0; i < count; ++i) Store(out, i, FloatToFloat16(in[i]));
}

// `phase_stride` is `half` where every row has its own cos, sin, and 0 where all share one.
EVERLONG_SIMD_CLONES void RotateHalfSplit(float* rows, Shape shape, const float* cos, const float* sin, int32_t half,
                                          int64_t phase_stride) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float* __restrict first = rows + t * shape.dim;
    float* __restrict second = first + half;
    const float* __restrict c = cos + t * phase_stride;
    const float* __restrict s = sin + t * phase_stride;
    for (int32_t i = 0; i < half; ++i) {
      const Pair turned = RotatePair({first[i], second[i]}, {c[i], s[i]});
      first[i] = turned.x;
      second[i] = turned.y;
    }
  }
}

EVERLONG_SIMD_CLONES void RotateInterleaved(float* rows, Shape shape, const float* cos, const float* sin, int32_t half,
                                            int64_t phase_stride) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float* __restrict row = rows + t * shape.dim;
    const float* __restrict c = cos + t * phase_stride;
    const float* __restrict s = sin + t * phase_stride;
    for (int32_t i = 0; i < half; ++i) {
      const Pair turned = RotatePair({row[2 * i], row[2 * i + 1]}, {c[i], s[i]});
      row[2 * i] = turned.x;
      row[2 * i + 1] = turned.y;
    }
  }
}

EVERLONG_SIMD_CLONES void UnrotateHalfSplit(float* rows, Shape shape, const float* cos, const float* sin,
                                            int32_t half) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float* __restrict first = rows + t * shape.dim;
    float* __restrict second = first + half;
    const float* __restrict c = cos + t * half;
    const float* __restrict s = sin + t * half;
    for (int32_t i = 0; i < half; ++i) {
      const Pair plain = RotatePair({first[i], second[i]}, InversePhase({c[i], s[i]}));
      first[i] = plain.x;
      second[i] = plain.y;
    }
  }
}

EVERLONG_SIMD_CLONES void UnrotateInterleaved(float* rows, Shape shape, const float* cos, const float* sin,
                                              int32_t half) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float* __restrict row = rows + t * shape.dim;
    const float* __restrict c = cos + t * half;
    const float* __restrict s = sin + t * half;
    for (int32_t i = 0; i < half; ++i) {
      const Pair plain = RotatePair({row[2 * i], row[2 * i + 1]}, InversePhase({c[i], s[i]}));
      row[2 * i] = plain.x;
      row[2 * i + 1] = plain.y;
    }
  }
}

EVERLONG_SIMD_CLONES uint32_t LargestBits(const float* __restrict in, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, MagnitudeBits(in[i]));
  return largest;
}

EVERLONG_SIMD_CLONES void LargestBitsByChannel(const float* __restrict rows, Shape shape, uint32_t* __restrict bits) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const float* row = rows + t * shape.dim;
    for (int32_t d = 0; d < shape.dim; ++d) bits[d] = std::max(bits[d], MagnitudeBits(row[d]));
  }
}

EVERLONG_SIMD_CLONES void EncodeChannelsE4M3(const float* __restrict rows, Shape shape, const float* __restrict inverse,
                                             uint8_t* __restrict codes) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const float* row = rows + t * shape.dim;
    uint8_t* code = codes + t * shape.dim;
    for (int32_t d = 0; d < shape.dim; ++d) code[d] = FloatToE4M3(row[d] * inverse[d]);
  }
}

EVERLONG_SIMD_CLONES void EncodeRowE4M3(const float* __restrict row, int32_t dim, float inverse,
                                        uint8_t* __restrict code) {
  for (int32_t d = 0; d < dim; ++d) code[d] = FloatToE4M3(row[d] * inverse);
}

EVERLONG_SIMD_CLONES void DecodeChannelsE4M3(const uint8_t* __restrict codes, Shape shape,
                                             const float* __restrict scales, float* __restrict rows) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const uint8_t* code = codes + t * shape.dim;
    float* row = rows + t * shape.dim;
    for (int32_t d = 0; d < shape.dim; ++d) row[d] = E4M3ToFloat(code[d]) * scales[d];
  }
}

EVERLONG_SIMD_CLONES void DecodeRowE4M3(const uint8_t* __restrict code, int32_t dim, float scale,
                                        float* __restrict row) {
  for (int32_t d = 0; d < dim; ++d) row[d] = E4M3ToFloat(code[d]) * scale;
}

EVERLONG_SIMD_CLONES void EncodeChannelsE5M2(const float* __restrict rows, Shape shape, const float* __restrict inverse,
                                             uint8_t* __restrict codes) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const float* row = rows + t * shape.dim;
    uint8_t* code = codes + t * shape.dim;
    for (int32_t d = 0; d < shape.dim; ++d) code[d] = FloatToE5M2(row[d] * inverse[d]);
  }
}

EVERLONG_SIMD_CLONES void EncodeRowE5M2(const float* __restrict row, int32_t dim, float inverse,
                                        uint8_t* __restrict code) {
  for (int32_t d = 0; d < dim; ++d) code[d] = FloatToE5M2(row[d] * inverse);
}

EVERLONG_SIMD_CLONES void DecodeChannelsE5M2(const uint8_t* __restrict codes, Shape shape,
                                             const float* __restrict scales, float* __restrict rows) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const uint8_t* code = codes + t * shape.dim;
    float* row = rows + t * shape.dim;
    for (int32_t d = 0; d < shape.dim; ++d) row[d] = E5M2ToFloat(code[d]) * scales[d];
  }
}

EVERLONG_SIMD_CLONES void DecodeRowE5M2(const uint8_t* __restrict code, int32_t dim, float scale,
                                        float* __restrict row) {
  for (int32_t d = 0; d < dim; ++d) row[d] = E5M2ToFloat(code[d]) * scale;
}

void Turn(float* rows, Shape shape, const float* cos, const float* sin, int32_t half, int64_t phase_stride,
          Pairing pairing) {
  if (pairing == Pairing::kHalfSplit) {
    RotateHalfSplit(rows, shape, cos, sin, half, phase_stride);
  } else {
    RotateInterleaved(rows, shape, cos, sin, half, phase_stride);
  }
}

}  // namespace

void Widen(const void* in, DType dtype, int64_t count, float* out) {
  const auto* bytes = static_cast<const unsigned char*>(in);
  switch (dtype) {
    case DType::kFloat32:
      if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kFloat16:
      return WidenFloat16(bytes, count, out);
    case DType::kBFloat16:
      return WidenBFloat16(bytes, count, out);
  }
}

void Narrow(const float* in, DType dtype, int64_t count, void* out) {
  auto* bytes = static_cast<unsigned char*>(out);
  switch (dtype) {
    case DType::kFloat32:
      if (count > 0) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kFloat16:
      return NarrowFloat16(in, count, bytes);
    case DType::kBFloat16:
      return NarrowBFloat16(in, count, bytes);
  }
}

void Rotate(float* rows, Shape shape, const float* cos, const float* sin, int32_t half, Pairing pairing) {
  Turn(rows, shape, cos, sin, half, half, pairing);
}

void RotateAll(float* rows, Shape shape, const float* cos, const float* sin, int32_t half, Pairing pairing) {
  Turn(rows, shape, cos, sin, half, 0, pairing);
}

void Unrotate(float* rows, Shape shape, const float* cos, const float* sin, int32_t half, Pairing pairing) {
  if (pairing == Pairing::kHalfSplit) {
    UnrotateHalfSplit(rows, shape, cos, sin, half);
  } else {
    UnrotateInterleaved(rows, shape, cos, sin, half);
  }
}

uint32_t LargestMagnitudeBits(const float* in, int64_t count) { return LargestBits(in, count); }

void ChannelScales(const float* rows, Shape shape, float format_max, float* scales) {
  std::vector<uint32_t> bits(static_cast<size_t>(shape.dim), 0U);
  LargestBitsByChannel(rows, shape, bits.data());
  for (int32_t d = 0; d < shape.dim; ++d) {
    scales[d] = GroupScale(FloatFromBits(bits[static_cast<size_t>(d)]), format_max);
  }
}

void RowScales(const float* rows, Shape shape, float format_max, float* scales) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    scales[t] = GroupScale(FloatFromBits(LargestBits(rows + t * shape.dim, shape.dim)), format_max);
  }
}

void EncodeByChannel(Codec codec, const float* rows, Shape shape, const float* scales, uint8_t* codes) {
  std::vector<float> inverse(static_cast<size_t>(shape.dim));
  for (int32_t d = 0; d < shape.dim; ++d) inverse[static_cast<size_t>(d)] = 1.0F / scales[d];
  (codec == Codec::kE4M3 ? EncodeChannelsE4M3 : EncodeChannelsE5M2)(rows, shape, inverse.data(), codes);
}

void EncodeByRow(Codec codec, const float* rows, Shape shape, const float* scales, uint8_t* codes) {
  const auto encode = codec == Codec::kE4M3 ? EncodeRowE4M3 : EncodeRowE5M2;
  for (int64_t t = 0; t < shape.tokens; ++t) {
    encode(rows + t * shape.dim, shape.dim, 1.0F / scales[t], codes + t * shape.dim);
  }
}

void DecodeByChannel(Codec codec, const uint8_t* codes, Shape shape, const float* scales, float* rows) {
  (codec == Codec::kE4M3 ? DecodeChannelsE4M3 : DecodeChannelsE5M2)(codes, shape, scales, rows);
}

void DecodeByRow(Codec codec, const uint8_t* codes, Shape shape, const float* scales, float* rows) {
  const auto decode = codec == Codec::kE4M3 ? DecodeRowE4M3 : DecodeRowE5M2;
  for (int64_t t = 0; t < shape.tokens; ++t) {
    decode(codes + t * shape.dim, shape.dim, scales[t], rows + t * shape.dim);
  }
}

}  // namespace everlong::kv::slab
