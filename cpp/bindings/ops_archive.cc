#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/kv/archive.h"
#include "everlong/kv/payload.h"
#include "ops_arguments.h"
#include "ops_kernels.h"
#include "ops_results.h"

namespace everlong::ops {
namespace {

kv::PayloadLayout LayoutOf(std::string_view op, int32_t layers, int32_t kv_heads, int32_t head_dim, int64_t page_tokens,
                           const std::string& codec) {
  const Result<kv::Codec> parsed = kv::ParseCodec(codec);
  ThrowIfError(op, parsed.ok() ? OkStatus() : parsed.status());
  const kv::PayloadLayout layout{*parsed, layers, kv_heads, head_dim, RequireInt32(op, "page_tokens", page_tokens, 1)};
  ThrowIfError(op, kv::Validate(layout));
  return layout;
}

kv::PayloadLayout LayoutOf(std::string_view op, const kv::FrameKv& frame, int64_t page_tokens,
                           const std::string& codec) {
  return LayoutOf(op, frame.layers, frame.kv_heads, frame.head_dim, page_tokens, codec);
}

std::span<const std::byte> BytesOf(std::string_view op, const Tensor& payload) {
  RequireCpu(op, "payload", payload);
  if (payload.scalar_type() != ScalarType::Byte || payload.dim() != 1 || !payload.is_contiguous()) {
    Reject(op, "payload", Describe(payload), "contiguous uint8 [bytes]");
  }
  return {static_cast<const std::byte*>(payload.const_data_ptr()), static_cast<size_t>(payload.size(0))};
}

// A payload for `tokens` tokens, uninitialised; and its bytes.
Tensor EmptyPayload(const Tensor& like, const kv::PayloadLayout& layout, int64_t tokens) {
  return NewResult(like, {layout.BlockBytes(tokens)}, ScalarType::Byte);
}
std::span<std::byte> MutableBytes(Tensor& payload) {
  return {static_cast<std::byte*>(payload.mutable_data_ptr()), static_cast<size_t>(payload.numel())};
}

// placements [N, 6]: the fields of kv::PagePlacement in their order.
std::vector<kv::PagePlacement> PlacementsOf(std::string_view op, const Tensor& placements) {
  RequireCpu(op, "placements", placements);
  if (placements.scalar_type() != ScalarType::Long || placements.dim() != 2 || placements.size(1) != 6) {
    Reject(op, "placements", Describe(placements), "int64 [N, 6]");
  }
  const Tensor contiguous = torch::stable::contiguous(placements);
  const auto* rows = static_cast<const int64_t*>(contiguous.const_data_ptr());
  std::vector<kv::PagePlacement> result;
  for (int64_t i = 0; i < contiguous.size(0); ++i) {
    const int64_t* row = rows + 6 * i;
    const std::string name = "placements[" + std::to_string(i) + ", ";
    result.push_back({row[0], RequireInt32(op, name + "1] (page_tokens)", row[1], 1),
                      RequireInt32(op, name + "2] (first_token)", row[2], 0),
                      RequireInt32(op, name + "3] (tokens)", row[3], 0), row[4], row[5]});
  }
  return result;
}

}  // namespace

Tensor ArchiveKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t first_slot,
                 int64_t tokens, int64_t page_tokens, const std::string& codec, bool interleaved) {
  constexpr std::string_view kOp = "archive_kv";
  const kv::FrameKv frame = FrameOf(kOp, k, v);
  const kv::SlotPhase phase = PhaseOf(kOp, cos, sin, frame);
  const kv::PayloadLayout layout = LayoutOf(kOp, frame, page_tokens, codec);
  if (tokens < 0 || tokens > frame.slots) {
    Reject(kOp, "tokens", std::to_string(tokens), "0 to F = " + std::to_string(frame.slots));
  }
  Tensor payload = EmptyPayload(k, layout, tokens);
  ThrowIfError(
      kOp, kv::ArchiveSpan(frame, phase, PairingOf(interleaved), first_slot, tokens, layout, MutableBytes(payload)));
  return payload;
}

void RestoreKv(const Tensor& payload, const Tensor& placements, const Tensor& k, const Tensor& v, const Tensor& cos,
               const Tensor& sin, int64_t page_tokens, const std::string& codec, const Tensor& inv_freq,
               double attention_scaling, bool interleaved) {
  constexpr std::string_view kOp = "restore_kv";
  const kv::FrameKv frame = FrameOf(kOp, k, v);
  const kv::SlotPhase phase = PhaseOf(kOp, cos, sin, frame);
  const kv::PayloadLayout layout = LayoutOf(kOp, frame, page_tokens, codec);
  const kv::RopeTable rope = RopeOf(kOp, inv_freq, attention_scaling, interleaved, frame.head_dim);
  const std::vector<kv::PagePlacement> places = PlacementsOf(kOp, placements);
  ThrowIfError(kOp, kv::RestorePages(BytesOf(kOp, payload), places, layout, rope, frame, phase));
}

Tensor EncodeKv(const Tensor& k, const Tensor& v, int64_t page_tokens, const std::string& codec) {
  constexpr std::string_view kOp = "encode_kv";
  RequireKeysAndValues(kOp, k, v);
  const int32_t layers = RequireInt32(kOp, "k's size 0 (layers)", k.size(0), 1);
  const int32_t kv_heads = RequireInt32(kOp, "k's size 1 (KV heads)", k.size(1), 1);
  const auto head_dim = static_cast<int32_t>(k.size(3));
  const kv::PayloadLayout layout = LayoutOf(kOp, layers, kv_heads, head_dim, page_tokens, codec);
  Tensor payload = EmptyPayload(k, layout, k.size(2));
  if (k.size(2) == 0) return payload;
  const Tensor keys = torch::stable::contiguous(k);
  const Tensor values = torch::stable::contiguous(v);
  // A frame without rotation; it is only read.
  kv::FrameKv frame{const_cast<void*>(keys.const_data_ptr()), const_cast<void*>(values.const_data_ptr())};
  frame.dtype = ElementType(kOp, "k", k);
  frame.layers = layers;
  frame.kv_heads = kv_heads;
  frame.head_dim = head_dim;
  frame.slots = k.size(2);
  frame.layer_stride = keys.stride(0);
  frame.head_stride = keys.stride(1);
  ThrowIfError(kOp, kv::ArchiveSpan(frame, {}, kv::Pairing::kHalfSplit, 0, frame.slots, layout, MutableBytes(payload)));
  return payload;
}

std::tuple<Tensor, Tensor> DecodeKv(const Tensor& payload, int64_t layers, int64_t kv_heads, int64_t tokens,
                                    int64_t head_dim, int64_t page_tokens, const std::string& codec, ScalarType dtype) {
  constexpr std::string_view kOp = "decode_kv";
  const kv::PayloadLayout layout =
      LayoutOf(kOp, RequireInt32(kOp, "layers", layers, 1), RequireInt32(kOp, "kv_heads", kv_heads, 1),
               RequireInt32(kOp, "head_dim", head_dim, 1), page_tokens, codec);
  const std::span<const std::byte> bytes = BytesOf(kOp, payload);
  const auto size = static_cast<int64_t>(bytes.size());
  // So many full pages would leave the payload: BlockBytes must not overflow.
  const int64_t most_tokens = (size / layout.PageBytes(layout.page_tokens) + 1) * layout.page_tokens;
  if (tokens < 0 || tokens > most_tokens || layout.BlockBytes(tokens) != size) {
    Reject(kOp, "tokens", std::to_string(tokens),
           "the tokens of a payload of " + std::to_string(size) + " bytes, where a page of " +
               std::to_string(layout.page_tokens) + " has " + std::to_string(layout.PageBytes(layout.page_tokens)));
  }
  Tensor k = NewResult(payload, {layers, kv_heads, tokens, head_dim}, dtype);
  Tensor v = NewResult(payload, {layers, kv_heads, tokens, head_dim}, dtype);
  ElementType(kOp, "dtype", k);
  if (tokens == 0) return {k, v};
  std::vector<kv::PagePlacement> pages;
  for (int64_t page = 0; page < layout.PageCount(tokens); ++page) {
    const int32_t held = layout.PageTokens(tokens, page);
    const int64_t first = page * layout.page_tokens;
    pages.push_back({page * layout.PageBytes(layout.page_tokens), held, 0, held, first, 0});
  }
  ThrowIfError(kOp, kv::RestorePages(bytes, pages, layout, kv::RopeTable{}, FrameOf(kOp, k, v), {}));
  return {k, v};
}

}  // namespace everlong::ops
