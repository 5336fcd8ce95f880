// restore_kv on a GPU, with raw device pointers and a stream, by the rules of hip/rotation_kernels.h.
#pragma once

#include <cstdint>

#include "everlong/kv/codec.h"
#include "everlong/kv/frame_kv.h"
#include "launch.h"

namespace everlong::hip {

// Runs of archived tokens to restore into the slots of a frame. All pointers are on the device.
struct RestoreJob {
  kv::FrameKv frame;
  kv::SlotPhase phase;
  bool interleaved = false;
  const uint8_t* payload = nullptr;
  kv::Codec codec = kv::Codec::kE4M3;
  const kv::PagePlacement* placements = nullptr;  // [count], checked: inside payload and frame, disjoint in slots
  int64_t count = 0;
  int64_t most_tokens = 0;           // of one placement
  const double* inv_freq = nullptr;  // [half]
  double attention_scaling = 1.0;
};

// Write phase, k and v of the placed slots of every layer. Scales and centres are not checked as on a CPU: the store's
// checksums are what tells that a payload is whole.
LaunchStatus RestoreKv(const RestoreJob& job, void* stream);

}  // namespace everlong::hip
