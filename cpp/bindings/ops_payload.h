// Payloads as tensors, checked as in ops_arguments.h, for the operators between frame and payload on every device.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "everlong/kv/frame_kv.h"
#include "everlong/kv/payload.h"
#include "ops_arguments.h"

namespace everlong::ops {

kv::PayloadLayout LayoutOf(std::string_view op, const kv::FrameKv& frame, int64_t page_tokens,
                           const std::string& codec);

// Return the bytes of payload uint8 [bytes], contiguous.
std::span<const std::byte> BytesOf(std::string_view op, const Tensor& payload);
// Make a payload for `tokens` tokens on the device of `like`, uninitialised.
Tensor EmptyPayload(const Tensor& like, const kv::PayloadLayout& layout, int64_t tokens);
// Return the bytes of such a payload.
std::span<std::byte> MutableBytes(const Tensor& payload);
// Check a payload that the caller made: like EmptyPayload's, and not overlapping k and v.
void RequirePayload(std::string_view op, const Tensor& out, const Tensor& k, const Tensor& v,
                    const kv::PayloadLayout& layout, int64_t tokens);

// Return placements [N, 6]: the fields of kv::PagePlacement in their order.
std::vector<kv::PagePlacement> PlacementsOf(std::string_view op, const Tensor& k, const Tensor& placements);

// k, v [L, Hkv, T, D] of encode_kv, contiguous, as a frame without rotation that is only read.
struct PlainKv {
  Tensor k, v;
  kv::FrameKv frame;
};
PlainKv PlainKvOf(std::string_view op, const Tensor& k, const Tensor& v);

// The sizes that decode_kv is given, checked against the payload; all its pages, one behind the other; and tensors [L,
// Hkv, T, D] for them on its device.
struct WholePayload {
  kv::PayloadLayout layout;
  std::vector<kv::PagePlacement> pages;
  Tensor k, v;
};
WholePayload WholePayloadOf(std::string_view op, const Tensor& payload, int64_t layers, int64_t kv_heads,
                            int64_t tokens, int64_t head_dim, int64_t page_tokens, const std::string& codec,
                            ScalarType dtype);

}  // namespace everlong::ops
