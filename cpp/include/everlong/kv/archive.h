// The two fused hot paths between frame and payload: every layer of a span in one call, one pass over the bytes.
// Parallel over layers, heads and pages. Safe from several threads on disjoint buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// Un-rotates, encodes and lays out slots [first_slot, first_slot + tokens) as the payload of a block.
// payload.size() == layout.BlockBytes(tokens). kInvalidArgument when a shape does not fit or a value is NaN or inf (the
// message names layer, head, token); then the payload's contents are unspecified.
Status ArchiveSpan(const FrameKv& frame, const SlotPhase& phase, Pairing pairing, int64_t first_slot, int64_t tokens,
                   const PayloadLayout& layout, std::span<std::byte> payload);

// What ArchiveSpan checks first, apart from the payload's size.
Status ValidateArchive(const FrameKv& frame, const SlotPhase& phase, int64_t first_slot, int64_t tokens,
                       const PayloadLayout& layout);

// A number of a span that its codec cannot hold, and the kInvalidArgument that names it; for an archive made on a GPU
// too.
struct RejectedNumber {
  bool is_key = true;
  int64_t layer = 0;
  int64_t head = 0;
  int64_t token = 0;  // of the span
  float value = 0;    // un-rotated
};
Status RejectedNumberError(const RejectedNumber& number, int64_t first_slot, Codec codec);

// Decodes, rotates to frame positions and writes k, v and phase of the placed slots of every layer, in place.
// kInvalidArgument when a placement leaves payload, page, frame or [0, kPositionLimit), or when two placements overlap
// in slots; then nothing is written.
Status RestorePages(std::span<const std::byte> payload, std::span<const PagePlacement> placements,
                    const PayloadLayout& layout, const RopeTable& rope, const FrameKv& frame, const SlotPhase& phase);

// What RestorePages checks first.
Status ValidateRestore(int64_t payload_bytes, std::span<const PagePlacement> placements, const PayloadLayout& layout,
                       const RopeTable& rope, const FrameKv& frame, const SlotPhase& phase);

// Un-rotated keys of one head out of one part (one layer of one page of `tokens`): keys [tokens, D] fp32.
void DecodeKeys(std::span<const std::byte> part, int32_t tokens, int32_t head, const PayloadLayout& layout,
                std::span<float> keys);

}  // namespace everlong::kv
