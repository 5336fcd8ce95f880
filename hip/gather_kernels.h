// gather_kv_ on a GPU: raw device pointers and a stream, as hip/rotation_kernels.h has it.
#pragma once

#include <cstdint>

#include "everlong/kv/frame_kv.h"
#include "launch.h"

namespace everlong::hip {

// Row i: slot sources[i] of one buffer goes to slot targets[i] of another; int64 [count] on the device, no target
// twice.
struct SlotGather {
  const int64_t* sources = nullptr;
  const int64_t* targets = nullptr;
  int64_t count = 0;
};

// The rotation that each target takes on, m included: cos, sin [count, half] on the device. The core computes it on the
// host (RopeTable::CosSin), so that every device turns by the same bits.
struct TakenPhase {
  const float* cos = nullptr;
  const float* sin = nullptr;
  bool interleaved = false;
};

// What kv::GatherSlots does. `workspace`: 2 * count * half floats on the device.
LaunchStatus GatherKv(const kv::FrameKv& from, const kv::SlotPhase& from_phase, const kv::FrameKv& to,
                      const kv::SlotPhase& to_phase, const SlotGather& gather, const TakenPhase& taken,
                      float* workspace, void* stream);

}  // namespace everlong::hip
