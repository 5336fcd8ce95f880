// Slots of one buffer, in any order, into slots of another: how chosen tokens are taken out of the frame, un-rotated,
// and put back at compact positions (four-MI100 design, 3.2.3.3 "Physical"). Torch-free; parallel through
// base/parallel_for.h; safe to call from several threads on disjoint buffers.
#pragma once

#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// Row i: slot sources[i] of `from` goes to slot targets[i] of `to`, in k and v of every layer. Its key loses the
// rotation that it carries in `from`, and takes on m R(positions[i]): to_phase of the slot says so. Position 0 with m =
// 1 leaves it un-rotated. One turn by the product of both phases, and one rounding to the element type; where either is
// no turn the bits are those of the other alone (DerotateRows, RerotateRows). kInvalidArgument unless both buffers are
// of one type, layers, heads and head_dim, share no bytes, slots lie inside them, no target comes twice, and positions
// in [0, kPositionLimit); then nothing is written.
Status GatherSlots(const FrameKv& from, const SlotPhase& from_phase, std::span<const int64_t> sources,
                   const FrameKv& to, const SlotPhase& to_phase, std::span<const int64_t> targets,
                   std::span<const int64_t> positions, const RopeTable& rope);

// What GatherSlots checks first.
Status ValidateGather(const FrameKv& from, const SlotPhase& from_phase, std::span<const int64_t> sources,
                      const FrameKv& to, const SlotPhase& to_phase, std::span<const int64_t> targets,
                      std::span<const int64_t> positions, const RopeTable& rope);

}  // namespace everlong::kv
