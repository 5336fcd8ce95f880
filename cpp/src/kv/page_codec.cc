#include "page_codec.h"

#include <cstring>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/dtype.h"
#include "everlong/kv/element.h"
#include "slab.h"

namespace everlong::kv {
namespace {

PartLayout PartOf(const PayloadLayout& layout, int32_t tokens) {
  return {layout.codec, layout.kv_heads, layout.head_dim, tokens};
}

// Codecs without scales are element types.
DType ElementType(Codec codec) {
  EVERLONG_CHECK(!HasScales(codec));
  return codec == Codec::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
}

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
  const PartLayout places = PartOf(layout, tokens);
  const slab::Shape shape{tokens, layout.head_dim};
  if (!HasScales(layout.codec)) {
    slab::Narrow(keys, ElementType(layout.codec), shape.size(), part + places.KCodes(head));
    return;
  }
  std::vector<float> scales(static_cast<size_t>(layout.head_dim));
  slab::ChannelScales(keys, shape, FormatMax(layout.codec), scales.data());
  slab::EncodeByChannel(layout.codec, keys, shape, scales.data(),
                        reinterpret_cast<uint8_t*>(part + places.KCodes(head)));
  StoreScales(scales, part + places.KScales(head));
}

void EncodeHeadValues(const float* values, const PayloadLayout& layout, int32_t tokens, int32_t head, std::byte* part) {
  const PartLayout places = PartOf(layout, tokens);
  const slab::Shape shape{tokens, layout.head_dim};
  if (!HasScales(layout.codec)) {
    slab::Narrow(values, ElementType(layout.codec), shape.size(), part + places.VCodes(head));
    return;
  }
  std::vector<float> scales(static_cast<size_t>(tokens));
  slab::RowScales(values, shape, FormatMax(layout.codec), scales.data());
  slab::EncodeByRow(layout.codec, values, shape, scales.data(), reinterpret_cast<uint8_t*>(part + places.VCodes(head)));
  StoreScales(scales, part + places.VScales(head));
}

void DecodeHeadKeys(const std::byte* part, const PayloadLayout& layout, PartRows rows, float* keys) {
  const PartLayout places = PartOf(layout, rows.tokens);
  const slab::Shape shape{rows.count, layout.head_dim};
  const std::byte* codes =
      part + places.KCodes(rows.head) + static_cast<int64_t>(rows.first) * layout.head_dim * CodeBytes(layout.codec);
  if (!HasScales(layout.codec)) {
    slab::Widen(codes, ElementType(layout.codec), shape.size(), keys);
    return;
  }
  const std::vector<float> scales = LoadScales(part + places.KScales(rows.head), layout.head_dim);
  slab::DecodeByChannel(layout.codec, reinterpret_cast<const uint8_t*>(codes), shape, scales.data(), keys);
}

void DecodeHeadValues(const std::byte* part, const PayloadLayout& layout, PartRows rows, float* values) {
  const PartLayout places = PartOf(layout, rows.tokens);
  const slab::Shape shape{rows.count, layout.head_dim};
  const std::byte* codes =
      part + places.VCodes(rows.head) + static_cast<int64_t>(rows.first) * layout.head_dim * CodeBytes(layout.codec);
  if (!HasScales(layout.codec)) {
    slab::Widen(codes, ElementType(layout.codec), shape.size(), values);
    return;
  }
  const auto skipped = static_cast<int64_t>(sizeof(float)) * rows.first;
  const std::vector<float> scales = LoadScales(part + places.VScales(rows.head) + skipped, rows.count);
  slab::DecodeByRow(layout.codec, reinterpret_cast<const uint8_t*>(codes), shape, scales.data(), values);
}

}  // namespace everlong::kv
