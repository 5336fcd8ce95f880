#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "../../hip/archive_kernels.h"
#include "../../hip/restore_kernels.h"
#include "everlong/kv/archive.h"
#include "ops_arguments.h"
#include "ops_gpu_device.h"
#include "ops_kernels.h"
#include "ops_payload.h"
#include "ops_refused.h"

namespace everlong::ops::gpu {
namespace {

constexpr std::string_view kArchive = "archive_kv";

// Check what ArchiveSpan checks first.
void RequireArchive(std::string_view op, const kv::FrameKv& frame, const kv::SlotPhase& phase, int64_t first_slot,
                    int64_t tokens, const kv::PayloadLayout& layout) {
  ThrowIfError(op, kv::ValidateArchive(frame, phase, first_slot, tokens, layout));
  if (layout.page_tokens > hip::kMostPageTokens) {
    Reject(op, "page_tokens", std::to_string(layout.page_tokens),
           "at most " + std::to_string(hip::kMostPageTokens) + " on a GPU");
  }
}

void ArchiveSpan(std::string_view op, const OnDeviceOf& device, const kv::FrameKv& frame, const kv::SlotPhase& phase,
                 bool interleaved, int64_t first_slot, int64_t tokens, const kv::PayloadLayout& layout,
                 const Tensor& payload, const std::optional<Tensor>& refused = std::nullopt) {
  const Tensor rejected = refused.has_value() ? *refused : device.Allocate(sizeof(kv::RefusedNumber));
  hip::ArchiveJob job;
  job.frame = frame;
  job.phase = phase;
  job.interleaved = interleaved;
  job.first_slot = first_slot;
  job.tokens = tokens;
  job.page_tokens = layout.page_tokens;
  job.codec = layout.codec;
  job.payload = DataOf<uint8_t>(payload);
  job.rejected = DataOf<kv::RefusedNumber>(rejected);
  device.Check(hip::ArchiveKv(job, device.stream()));
  // A number that is not finite must not be stored. A caller without `refused` cannot ask later, so it waits here.
  if (!refused.has_value()) ThrowIfRefused(op, layout, first_slot, device.Download<kv::RefusedNumber>(rejected));
}

void RestorePages(std::string_view op, const OnDeviceOf& device, const Tensor& payload,
                  const std::vector<kv::PagePlacement>& places, const kv::PayloadLayout& layout,
                  const kv::RopeTable& rope, const kv::FrameKv& frame, const kv::SlotPhase& phase) {
  const std::span<const std::byte> bytes = BytesOf(op, payload);
  ThrowIfError(op, kv::ValidateRestore(static_cast<int64_t>(bytes.size()), places, layout, rope, frame, phase));
  const Tensor device_places = device.Upload(std::span(places));
  const Tensor device_inv_freq = device.Upload(std::span(rope.inv_freq));
  hip::RestoreJob job;
  job.frame = frame;
  job.phase = phase;
  job.interleaved = rope.pairing == kv::Pairing::kInterleaved;
  job.payload = static_cast<const uint8_t*>(payload.const_data_ptr());
  job.codec = layout.codec;
  job.placements = DataOf<kv::PagePlacement>(device_places);
  job.count = static_cast<int64_t>(places.size());
  for (const kv::PagePlacement& place : places) job.most_tokens = std::max<int64_t>(job.most_tokens, place.tokens);
  job.inv_freq = DataOf<double>(device_inv_freq);
  job.attention_scaling = rope.attention_scaling;
  device.Check(hip::RestoreKv(job, device.stream()));
}

}  // namespace

Tensor ArchiveKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t first_slot,
                 int64_t tokens, int64_t page_tokens, const std::string& codec, bool interleaved) {
  const OnDeviceOf device(kArchive, "k", k);
  const kv::FrameKv frame = FrameOf(kArchive, k, v);
  const kv::SlotPhase phase = PhaseOf(kArchive, k, cos, sin, frame);
  const kv::PayloadLayout layout = LayoutOf(kArchive, frame, page_tokens, codec);
  RequireTokens(kArchive, tokens, frame);
  RequireArchive(kArchive, frame, phase, first_slot, tokens, layout);
  Tensor payload = device.Allocate(layout.BlockBytes(tokens));
  ArchiveSpan(kArchive, device, frame, phase, interleaved, first_slot, tokens, layout, payload);
  return payload;
}

void ArchiveKvOut(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t first_slot,
                  int64_t tokens, int64_t page_tokens, const std::string& codec, bool interleaved, const Tensor& out,
                  const std::optional<Tensor>& refused) {
  const OnDeviceOf device(kArchive, "k", k);
  const kv::FrameKv frame = FrameOf(kArchive, k, v);
  const kv::SlotPhase phase = PhaseOf(kArchive, k, cos, sin, frame);
  const kv::PayloadLayout layout = LayoutOf(kArchive, frame, page_tokens, codec);
  RequireTokens(kArchive, tokens, frame);
  RequirePayload(kArchive, out, k, v, layout, tokens);
  RequireArchive(kArchive, frame, phase, first_slot, tokens, layout);
  if (refused.has_value()) RequireRefused(kArchive, k, *refused);
  ArchiveSpan(kArchive, device, frame, phase, interleaved, first_slot, tokens, layout, out, refused);
}

void RestoreKv(const Tensor& payload, const Tensor& placements, const Tensor& k, const Tensor& v, const Tensor& cos,
               const Tensor& sin, int64_t page_tokens, const std::string& codec, const Tensor& inv_freq,
               double attention_scaling, bool interleaved) {
  constexpr std::string_view kOp = "restore_kv";
  const OnDeviceOf device(kOp, "k", k);
  const kv::FrameKv frame = FrameOf(kOp, k, v);
  const kv::SlotPhase phase = PhaseOf(kOp, k, cos, sin, frame);
  const kv::PayloadLayout layout = LayoutOf(kOp, frame, page_tokens, codec);
  const kv::RopeTable rope = RopeOf(kOp, k, inv_freq, attention_scaling, interleaved);
  const std::vector<kv::PagePlacement> places = PlacementsOf(kOp, k, placements);
  RequireDeviceOf(kOp, k, "payload", payload);
  RestorePages(kOp, device, payload, places, layout, rope, frame, phase);
}

Tensor EncodeKv(const Tensor& k, const Tensor& v, int64_t page_tokens, const std::string& codec) {
  constexpr std::string_view kOp = "encode_kv";
  const OnDeviceOf device(kOp, "k", k);
  const PlainKv plain = PlainKvOf(kOp, k, v);
  const kv::PayloadLayout layout = LayoutOf(kOp, plain.frame, page_tokens, codec);
  if (plain.frame.slots == 0) return EmptyPayload(k, layout, 0);
  RequireArchive(kOp, plain.frame, {}, 0, plain.frame.slots, layout);
  Tensor payload = device.Allocate(layout.BlockBytes(plain.frame.slots));
  ArchiveSpan(kOp, device, plain.frame, {}, false, 0, plain.frame.slots, layout, payload);
  return payload;
}

std::tuple<Tensor, Tensor> DecodeKv(const Tensor& payload, int64_t layers, int64_t kv_heads, int64_t tokens,
                                    int64_t head_dim, int64_t page_tokens, const std::string& codec, ScalarType dtype) {
  constexpr std::string_view kOp = "decode_kv";
  const OnDeviceOf device(kOp, "payload", payload);
  const WholePayload whole =
      WholePayloadOf(kOp, payload, layers, kv_heads, tokens, head_dim, page_tokens, codec, dtype);
  if (tokens == 0) return {whole.k, whole.v};
  RestorePages(kOp, device, payload, whole.pages, whole.layout, {}, FrameOf(kOp, whole.k, whole.v), {});
  return {whole.k, whole.v};
}

}  // namespace everlong::ops::gpu
