// gather_kv_ on a GPU, with raw device pointers and a stream, by the rules of hip/rotation_kernels.h.
#pragma once

#include <cstdint>

#include "everlong/kv/frame_kv.h"
#include "launch.h"

namespace everlong::hip {

// Row i: slot sources[i] of one buffer goes to slot targets[i] of another, and its key to position positions[i]. They
// are int64 [count] on the device. No target comes twice.
struct SlotGather {
  const int64_t* sources = nullptr;
  const int64_t* targets = nullptr;
  const int64_t* positions = nullptr;
  int64_t count = 0;
};

// The rotation that targets get, with m. Its angles are computed on the device, in fp64.
struct TakenRope {
  const double* inv_freq = nullptr;  // [half] on the device
  double attention_scaling = 1.0;
  bool interleaved = false;
};

// Do what kv::GatherSlots does. `workspace` holds 2 * count * half floats on the device.
LaunchStatus GatherKv(const kv::FrameKv& from, const kv::SlotPhase& from_phase, const kv::FrameKv& to,
                      const kv::SlotPhase& to_phase, const SlotGather& gather, const TakenRope& rope, float* workspace,
                      void* stream);

}  // namespace everlong::hip
