#include "page_codec.h"

#include <cstring>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/dtype.h"
#include "everlong/kv/element.h"
#include "slab.h"

namespace everlong::kv {
namespace {

// Byte offsets in a part of what belongs to `head`, by the order of kv/payload.h.
struct HeadOffsets {
  int64_t k_codes = 0;   // [T, D]
  int64_t v_codes = 0;   // [T, D]
  int64_t k_scales = 0;  // [D] fp32
  int64_t v_scales = 0;  // [T] fp32
};

HeadOffsets OffsetsOf(const PayloadLayout& layout, int32_t tokens, int32_t head) {
  const int64_t head_codes = static_cast<int64_t>(tokens) * layout.head_dim * CodeBytes(layout.codec);
  const int64_t scales = 2 * layout.kv_heads * head_codes;
  constexpr int64_t kFloatBytes = sizeof(float);
  HeadOffsets offsets;
  offsets.k_codes = head * head_codes;
  offsets.v_codes = (layout.kv_heads + head) * head_codes;
  offsets.k_scales = scales + kFloatBytes * head * layout.head_dim;
  offsets.v_scales = scales + kFloatBytes * (static_cast<int64_t>(layout.kv_heads) * layout.head_dim +
                                             static_cast<int64_t>(head) * tokens);
  return offsets;
}

// Codecs without scales are element types.
DType ElementType(Codec codec) {
  EVERLONG_CHECK(!HasScales(codec));
  return codec == Codec::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
}

float FormatMax(Codec codec) { return codec == Codec::kE4M3 ? kE4M3Max : kE5M2Max; }

// Scales lie unaligned in a part.
void StoreScales(const std::vector<float>& scales, std::byte* out) {
  std::memcpy(out, scales.data(), scales.size() * sizeof(float));
}

std::vector<float> LoadScales(const std::byte* in, int32_t count) {
  std::vector<float> scales(static_cast<size_t>(count));
  std::memcpy(scales.data(), in, scales.size() * sizeof(float));
  return scales;
}

}  // namespace

void EncodeHeadKeys(const float* keys, const PayloadLayout& layout, int32_t tokens, int32_t head, std::byte* part) {
  const HeadOffsets offsets = OffsetsOf(layout, tokens, head);
  const slab::Shape shape{tokens, layout.head_dim};
  if (!HasScales(layout.codec)) {
    slab::Narrow(keys, ElementType(layout.codec), shape.size(), part + offsets.k_codes);
    return;
  }
  std::vector<float> scales(static_cast<size_t>(layout.head_dim));
  slab::ChannelScales(keys, shape, FormatMax(layout.codec), scales.data());
  slab::EncodeByChannel(layout.codec, keys, shape, scales.data(), reinterpret_cast<uint8_t*>(part + offsets.k_codes));
  StoreScales(scales, part + offsets.k_scales);
}

void EncodeHeadValues(const float* values, const PayloadLayout& layout, int32_t tokens, int32_t head, std::byte* part) {
  const HeadOffsets offsets = OffsetsOf(layout, tokens, head);
  const slab::Shape shape{tokens, layout.head_dim};
  if (!HasScales(layout.codec)) {
    slab::Narrow(values, ElementType(layout.codec), shape.size(), part + offsets.v_codes);
    return;
  }
  std::vector<float> scales(static_cast<size_t>(tokens));
  slab::RowScales(values, shape, FormatMax(layout.codec), scales.data());
  slab::EncodeByRow(layout.codec, values, shape, scales.data(), reinterpret_cast<uint8_t*>(part + offsets.v_codes));
  StoreScales(scales, part + offsets.v_scales);
}

void DecodeHeadKeys(const std::byte* part, const PayloadLayout& layout, PartRows rows, float* keys) {
  const HeadOffsets offsets = OffsetsOf(layout, rows.tokens, rows.head);
  const slab::Shape shape{rows.count, layout.head_dim};
  const std::byte* codes =
      part + offsets.k_codes + static_cast<int64_t>(rows.first) * layout.head_dim * CodeBytes(layout.codec);
  if (!HasScales(layout.codec)) {
    slab::Widen(codes, ElementType(layout.codec), shape.size(), keys);
    return;
  }
  const std::vector<float> scales = LoadScales(part + offsets.k_scales, layout.head_dim);
  slab::DecodeByChannel(layout.codec, reinterpret_cast<const uint8_t*>(codes), shape, scales.data(), keys);
}

void DecodeHeadValues(const std::byte* part, const PayloadLayout& layout, PartRows rows, float* values) {
  const HeadOffsets offsets = OffsetsOf(layout, rows.tokens, rows.head);
  const slab::Shape shape{rows.count, layout.head_dim};
  const std::byte* codes =
      part + offsets.v_codes + static_cast<int64_t>(rows.first) * layout.head_dim * CodeBytes(layout.codec);
  if (!HasScales(layout.codec)) {
    slab::Widen(codes, ElementType(layout.codec), shape.size(), values);
    return;
  }
  const auto skipped = static_cast<int64_t>(sizeof(float)) * rows.first;
  const std::vector<float> scales = LoadScales(part + offsets.v_scales + skipped, rows.count);
  slab::DecodeByRow(layout.codec, reinterpret_cast<const uint8_t*>(codes), shape, scales.data(), values);
}

}  // namespace everlong::kv
