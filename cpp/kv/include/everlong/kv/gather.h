// Copy slots between buffers, in any order: chosen tokens leave the frame un-rotated and return at compact positions.
// Without torch. Parallel through base/parallel_for.h. Several threads may work on disjoint buffers.
#pragma once

#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// Row i copies slot sources[i] of `from` to slot targets[i] of `to`, in k and v of every layer. Its key loses the
// rotation of its slot in `from` and gets m R(positions[i]). The slot's to_phase records that. Position 0 with m = 1
// leaves the key un-rotated. The key turns once, by the product of both phases, with one rounding to the element type.
// Where one of the two is no turn, the bits are those of the other alone (DerotateRows, RerotateRows). The buffers must
// have one type, layers, heads and head_dim, and share no bytes. All slots must lie inside them, no target may come
// twice, and positions must lie in [0, kPositionLimit). Otherwise kInvalidArgument, and nothing is written.
Status GatherSlots(const FrameKv& from, const SlotPhase& from_phase, std::span<const int64_t> sources,
                   const FrameKv& to, const SlotPhase& to_phase, std::span<const int64_t> targets,
                   std::span<const int64_t> positions, const RopeTable& rope);

// Check what GatherSlots checks first.
Status ValidateGather(const FrameKv& from, const SlotPhase& from_phase, std::span<const int64_t> sources,
                      const FrameKv& to, const SlotPhase& to_phase, std::span<const int64_t> targets,
                      std::span<const int64_t> positions, const RopeTable& rope);

}  // namespace everlong::kv
