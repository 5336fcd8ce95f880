// Archive and restore on the CPU: the two hot paths between frame and payload. One call does every layer of a span, in
// one pass, parallel over layers, heads and pages. Several threads may work on disjoint buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// Un-rotate and encode slots [first_slot, first_slot + tokens) into the payload of a block. payload.size() must be
// layout.BlockBytes(tokens). kInvalidArgument when a shape does not fit or a value is NaN or inf; the message names
// layer, head and token. The payload's contents are then unspecified.
Status ArchiveSpan(const FrameKv& frame, const SlotPhase& phase, Pairing pairing, int64_t first_slot, int64_t tokens,
                   const PayloadLayout& layout, std::span<std::byte> payload);

// Check what ArchiveSpan checks first, apart from the payload's size.
Status ValidateArchive(const FrameKv& frame, const SlotPhase& phase, int64_t first_slot, int64_t tokens,
                       const PayloadLayout& layout);

// A number of a span that its codec cannot hold, and the kInvalidArgument that names it. Archives on a GPU use it too.
struct RejectedNumber {
  bool is_key = true;
  int64_t layer = 0;
  int64_t head = 0;
  int64_t token = 0;  // number within the span
  float value = 0;    // un-rotated
};
Status RejectedNumberError(const RejectedNumber& number, int64_t first_slot, Codec codec);

// Decode placed pages, rotate their keys to frame positions, and write k, v and phase of every layer, in place.
// kInvalidArgument, and nothing written, if one leaves payload, page, frame or [0, kPositionLimit), or two overlap in
// slots. kCorrupt, and nothing written, if a scale or a centre is not one that an archive writes.
Status RestorePages(std::span<const std::byte> payload, std::span<const PagePlacement> placements,
                    const PayloadLayout& layout, const RopeTable& rope, const FrameKv& frame, const SlotPhase& phase);

// Check what RestorePages checks first.
Status ValidateRestore(int64_t payload_bytes, std::span<const PagePlacement> placements, const PayloadLayout& layout,
                       const RopeTable& rope, const FrameKv& frame, const SlotPhase& phase);

// Decode the un-rotated keys of one head of a part (one layer of one page of `tokens`): keys [tokens, D] fp32.
void DecodeKeys(std::span<const std::byte> part, int32_t tokens, int32_t head, const PayloadLayout& layout,
                std::span<float> keys);

}  // namespace everlong::kv
