#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "everlong/kv/archive.h"
#include "ops_arguments.h"
#include "ops_kernels.h"
#include "ops_payload.h"
#include "ops_refused.h"

namespace everlong::ops {
namespace {

constexpr std::string_view kArchive = "archive_kv";

}  // namespace

Tensor ArchiveKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t first_slot,
                 int64_t tokens, int64_t page_tokens, const std::string& codec, bool interleaved) {
  const kv::FrameKv frame = FrameOf(kArchive, k, v);
  const kv::PayloadLayout layout = LayoutOf(kArchive, frame, page_tokens, codec);
  RequireTokens(kArchive, tokens, frame);
  Tensor payload = EmptyPayload(k, layout, tokens);
  ArchiveKvOut(k, v, cos, sin, first_slot, tokens, page_tokens, codec, interleaved, payload, std::nullopt);
  return payload;
}

void ArchiveKvOut(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t first_slot,
                  int64_t tokens, int64_t page_tokens, const std::string& codec, bool interleaved, const Tensor& out,
                  const std::optional<Tensor>& refused) {
  const kv::FrameKv frame = FrameOf(kArchive, k, v);
  const kv::SlotPhase phase = PhaseOf(kArchive, k, cos, sin, frame);
  const kv::PayloadLayout layout = LayoutOf(kArchive, frame, page_tokens, codec);
  RequireTokens(kArchive, tokens, frame);
  RequirePayload(kArchive, out, k, v, layout, tokens);
  if (refused.has_value()) {  // on the CPU an error is raised at once
    RequireRefused(kArchive, k, *refused);
    constexpr kv::RefusedNumber kNothing;
    std::memcpy(refused->mutable_data_ptr(), &kNothing, sizeof kNothing);
  }
  ThrowIfError(kArchive,
               kv::ArchiveSpan(frame, phase, PairingOf(interleaved), first_slot, tokens, layout, MutableBytes(out)));
}

void RestoreKv(const Tensor& payload, const Tensor& placements, const Tensor& k, const Tensor& v, const Tensor& cos,
               const Tensor& sin, int64_t page_tokens, const std::string& codec, const Tensor& inv_freq,
               double attention_scaling, bool interleaved) {
  constexpr std::string_view kOp = "restore_kv";
  const kv::FrameKv frame = FrameOf(kOp, k, v);
  const kv::SlotPhase phase = PhaseOf(kOp, k, cos, sin, frame);
  const kv::PayloadLayout layout = LayoutOf(kOp, frame, page_tokens, codec);
  const kv::RopeTable rope = RopeOf(kOp, k, inv_freq, attention_scaling, interleaved);
  const std::vector<kv::PagePlacement> places = PlacementsOf(kOp, k, placements);
  RequireDeviceOf(kOp, k, "payload", payload);
  ThrowIfError(kOp, kv::RestorePages(BytesOf(kOp, payload), places, layout, rope, frame, phase));
}

Tensor EncodeKv(const Tensor& k, const Tensor& v, int64_t page_tokens, const std::string& codec) {
  constexpr std::string_view kOp = "encode_kv";
  const PlainKv plain = PlainKvOf(kOp, k, v);
  const kv::PayloadLayout layout = LayoutOf(kOp, plain.frame, page_tokens, codec);
  const Tensor payload = EmptyPayload(k, layout, plain.frame.slots);
  if (plain.frame.slots == 0) return payload;
  ThrowIfError(kOp, kv::ArchiveSpan(plain.frame, {}, kv::Pairing::kHalfSplit, 0, plain.frame.slots, layout,
                                    MutableBytes(payload)));
  return payload;
}

std::tuple<Tensor, Tensor> DecodeKv(const Tensor& payload, int64_t layers, int64_t kv_heads, int64_t tokens,
                                    int64_t head_dim, int64_t page_tokens, const std::string& codec, ScalarType dtype) {
  constexpr std::string_view kOp = "decode_kv";
  const WholePayload whole =
      WholePayloadOf(kOp, payload, layers, kv_heads, tokens, head_dim, page_tokens, codec, dtype);
  if (tokens == 0) return {whole.k, whole.v};
  ThrowIfError(kOp, kv::RestorePages(BytesOf(kOp, payload), whole.pages, whole.layout, kv::RopeTable{},
                                     FrameOf(kOp, whole.k, whole.v), {}));
  return {whole.k, whole.v};
}

}  // namespace everlong::ops
