// shift_kv_ on a GPU, with raw device pointers and a stream, by the rules of hip/rotation_kernels.h.
#pragma once

#include <cstdint>

#include "everlong/kv/frame_kv.h"
#include "launch.h"

namespace everlong::hip {

// Slots [source, source + count) move to [target, target + count). The ranges may overlap.
struct SlotShift {
  int64_t source = 0;
  int64_t target = 0;
  int64_t count = 0;
};

// The turn of the moved keys, one number a pair, on the device. The host computes it in fp64 for all devices alike.
struct ShiftTurn {
  const double* cos = nullptr;  // [half], what phases are composed with
  const double* sin = nullptr;
  const float* key_cos = nullptr;  // [half], what keys are turned by
  const float* key_sin = nullptr;
  bool interleaved = false;
  bool is_identity = false;  // delta 0: keys only move
};

int64_t ShiftWorkspaceBytes(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift);

// Shift k, v and phase of the frame, in place. `workspace` is ShiftWorkspaceBytes on the device, aligned to 16.
LaunchStatus ShiftKv(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift,
                     const ShiftTurn& turn, void* workspace, void* stream);

}  // namespace everlong::hip
