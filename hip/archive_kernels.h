// archive_kv on a GPU, with raw device pointers and a stream, by the rules of hip/rotation_kernels.h.
#pragma once

#include <cstdint>

#include "everlong/kv/codec.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/refused.h"
#include "launch.h"

namespace everlong::hip {

using RejectedNumber = kv::RefusedNumber;  // written by the kernel

// Slots [first_slot, first_slot + tokens) of a frame, to encode as the payload of a block (kv/payload.h).
struct ArchiveJob {
  kv::FrameKv frame;
  kv::SlotPhase phase;
  bool interleaved = false;
  int64_t first_slot = 0;
  int64_t tokens = 0;
  int32_t page_tokens = 0;  // at most kMostPageTokens
  kv::Codec codec = kv::Codec::kE4M3;
  uint8_t* payload = nullptr;
  RejectedNumber* rejected = nullptr;  // one, on the device
};

// The most tokens of a page that a block of threads can hold while it finds the scales.
inline constexpr int32_t kMostPageTokens = 512;

// Un-rotate, scale and encode. When job.rejected comes back with an index, the payload is unspecified.
LaunchStatus ArchiveKv(const ArchiveJob& job, void* stream);

}  // namespace everlong::hip
