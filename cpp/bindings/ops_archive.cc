#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/kv/archive.h"
#include "everlong/kv/payload.h"
#include "ops_arguments.h"
#include "ops_kernels.h"

namespace everlong::ops {
namespace {

kv::PayloadLayout LayoutOf(std::string_view op, const kv::FrameKv& frame, int64_t page_tokens,
                           const std::string& codec) {
  const Result<kv::Codec> parsed = kv::ParseCodec(codec);
  ThrowIfError(op, parsed.ok() ? OkStatus() : parsed.status());
  return {*parsed, frame.layers, frame.kv_heads, frame.head_dim, RequireInt32(op, "page_tokens", page_tokens, 1)};
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
  const std::array<int64_t, 1> size{layout.BlockBytes(tokens)};
  Tensor payload = torch::stable::new_empty(k, {size.data(), size.size()}, ScalarType::Byte);
  const std::span bytes(static_cast<std::byte*>(payload.mutable_data_ptr()), static_cast<size_t>(size[0]));
  ThrowIfError(kOp, kv::ArchiveSpan(frame, phase, PairingOf(interleaved), first_slot, tokens, layout, bytes));
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
  RequireCpu(kOp, "payload", payload);
  if (payload.scalar_type() != ScalarType::Byte || payload.dim() != 1 || !payload.is_contiguous()) {
    Reject(kOp, "payload", Describe(payload), "contiguous uint8 [bytes]");
  }
  const std::span bytes(static_cast<const std::byte*>(payload.const_data_ptr()), static_cast<size_t>(payload.size(0)));
  ThrowIfError(kOp, kv::RestorePages(bytes, places, layout, rope, frame, phase));
}

}  // namespace everlong::ops
