#include "ops_payload.h"

#include <torch/csrc/stable/ops.h>

#include "ops_results.h"

namespace everlong::ops {
namespace {

kv::PayloadLayout CheckedLayout(std::string_view op, int32_t layers, int32_t kv_heads, int32_t head_dim,
                                int64_t page_tokens, const std::string& codec) {
  const Result<kv::Codec> parsed = kv::ParseCodec(codec);
  ThrowIfError(op, parsed.ok() ? OkStatus() : parsed.status());
  const kv::PayloadLayout layout{*parsed, layers, kv_heads, head_dim, RequireInt32(op, "page_tokens", page_tokens, 1)};
  ThrowIfError(op, kv::Validate(layout));
  return layout;
}

// Return the first byte of a tensor's elements, and the one behind the last.
std::pair<uintptr_t, uintptr_t> ExtentOf(const Tensor& tensor) {
  auto first = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {first, first};
  auto end = first + static_cast<uintptr_t>(tensor.element_size());
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    end += static_cast<uintptr_t>((tensor.size(i) - 1) * tensor.stride(i) * tensor.element_size());
  }
  return {first, end};
}

bool Overlap(const Tensor& a, const Tensor& b) {
  const auto [a_first, a_end] = ExtentOf(a);
  const auto [b_first, b_end] = ExtentOf(b);
  return a_first < b_end && b_first < a_end;
}

}  // namespace

kv::PayloadLayout LayoutOf(std::string_view op, const kv::FrameKv& frame, int64_t page_tokens,
                           const std::string& codec) {
  return CheckedLayout(op, frame.layers, frame.kv_heads, frame.head_dim, page_tokens, codec);
}

std::span<const std::byte> BytesOf(std::string_view op, const Tensor& payload) {
  if (payload.scalar_type() != ScalarType::Byte || payload.dim() != 1 || !payload.is_contiguous()) {
    Reject(op, "payload", Describe(payload), "contiguous uint8 [bytes]");
  }
  return {static_cast<const std::byte*>(payload.const_data_ptr()), static_cast<size_t>(payload.size(0))};
}

Tensor EmptyPayload(const Tensor& like, const kv::PayloadLayout& layout, int64_t tokens) {
  return NewResult(like, {layout.BlockBytes(tokens)}, ScalarType::Byte);
}

std::span<std::byte> MutableBytes(const Tensor& payload) {
  return {static_cast<std::byte*>(payload.mutable_data_ptr()), static_cast<size_t>(payload.numel())};
}

void RequirePayload(std::string_view op, const Tensor& out, const Tensor& k, const Tensor& v,
                    const kv::PayloadLayout& layout, int64_t tokens) {
  RequireDeviceOf(op, k, "out", out);
  const int64_t bytes = layout.BlockBytes(tokens);
  if (out.scalar_type() != ScalarType::Byte || out.dim() != 1 || !out.is_contiguous() || out.numel() != bytes) {
    Reject(op, "out", Describe(out), "contiguous uint8 [" + std::to_string(bytes) + "]");
  }
  for (const Tensor* tensor : {&k, &v}) {
    if (Overlap(out, *tensor)) Reject(op, "out", Describe(out), "memory that is not k's or v's");
  }
}

std::vector<kv::PagePlacement> PlacementsOf(std::string_view op, const Tensor& k, const Tensor& placements) {
  if (placements.scalar_type() != ScalarType::Long || placements.dim() != 2 || placements.size(1) != 6) {
    Reject(op, "placements", Describe(placements), "int64 [N, 6]");
  }
  const Tensor contiguous = HostTensor(op, k, "placements", placements);
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

PlainKv PlainKvOf(std::string_view op, const Tensor& k, const Tensor& v) {
  RequireKeysAndValues(op, k, v);
  PlainKv plain{torch::stable::contiguous(k), torch::stable::contiguous(v), {}};
  plain.frame.k = const_cast<void*>(plain.k.const_data_ptr());
  plain.frame.v = const_cast<void*>(plain.v.const_data_ptr());
  plain.frame.dtype = ElementType(op, "k", k);
  plain.frame.layers = RequireInt32(op, "k's size 0 (layers)", k.size(0), 1);
  plain.frame.kv_heads = RequireInt32(op, "k's size 1 (KV heads)", k.size(1), 1);
  plain.frame.head_dim = static_cast<int32_t>(k.size(3));
  plain.frame.slots = k.size(2);
  plain.frame.layer_stride = plain.k.stride(0);
  plain.frame.head_stride = plain.k.stride(1);
  return plain;
}

WholePayload WholePayloadOf(std::string_view op, const Tensor& payload, int64_t layers, int64_t kv_heads,
                            int64_t tokens, int64_t head_dim, int64_t page_tokens, const std::string& codec,
                            ScalarType dtype) {
  const kv::PayloadLayout layout =
      CheckedLayout(op, RequireInt32(op, "layers", layers, 1), RequireInt32(op, "kv_heads", kv_heads, 1),
                    RequireInt32(op, "head_dim", head_dim, 1), page_tokens, codec);
  const auto size = static_cast<int64_t>(BytesOf(op, payload).size());
  // More full pages than this would not fit the payload. The limit keeps BlockBytes from overflowing.
  const int64_t most_tokens = (size / layout.PageBytes(layout.page_tokens) + 1) * layout.page_tokens;
  if (tokens < 0 || tokens > most_tokens || layout.BlockBytes(tokens) != size) {
    Reject(op, "tokens", std::to_string(tokens),
           "the tokens of a payload of " + std::to_string(size) + " bytes, where a page of " +
               std::to_string(layout.page_tokens) + " has " + std::to_string(layout.PageBytes(layout.page_tokens)));
  }
  Tensor k = NewResult(payload, {layers, kv_heads, tokens, head_dim}, dtype);
  Tensor v = NewResult(payload, {layers, kv_heads, tokens, head_dim}, dtype);
  ElementType(op, "dtype", k);
  std::vector<kv::PagePlacement> pages;
  for (int64_t page = 0; page < layout.PageCount(tokens); ++page) {
    const int32_t held = layout.PageTokens(tokens, page);
    pages.push_back({page * layout.PageBytes(layout.page_tokens), held, 0, held, page * layout.page_tokens, 0});
  }
  return {layout, std::move(pages), std::move(k), std::move(v)};
}

}  // namespace everlong::ops
