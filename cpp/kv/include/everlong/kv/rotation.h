// Un-rotate keys, rotate them, and turn them further. Without torch. Parallel through base/parallel_for.h. Several
// threads may call it on disjoint buffers. The arithmetic is fp32 from base/element.h, with one rounding to the element
// type at the end: fp16, bf16 or fp32.
#pragma once

#include <cstdint>
#include <span>

#include "everlong/base/dtype.h"
#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// A batch of key rows. Row (b, h, t) has D contiguous elements and starts at b*stride_b + h*stride_h + t*stride_t.
struct KeyRows {
  const void* in = nullptr;
  void* out = nullptr;  // contiguous [B, H, T, D]; may equal `in` when that is contiguous too
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, tokens = 0;
  int32_t head_dim = 0;
  int64_t stride_b = 0, stride_h = 0, stride_t = 0;  // of `in`, in elements
};

// out = R^-1 in, with the cos, sin [tokens, half] (with m) of the forward: k = (K c - rot(K) s) / (c^2 + s^2).
void DerotateRows(const KeyRows& rows, const float* cos, const float* sin, int32_t half, Pairing pairing);

// out = m R(position[t]) in.
void RerotateRows(const KeyRows& rows, std::span<const int64_t> positions, const RopeTable& rope);

// Move slots [source, source + count) to [target, target + count) in k and v of every layer: a frame re-base. The
// ranges may overlap. The moved keys turn by `delta` positions, and `phase` moves and composes with them. m stays.
// kInvalidArgument when a range leaves the frame or delta is kPositionLimit or more.
Status ShiftSlots(const FrameKv& frame, const SlotPhase& phase, int64_t source, int64_t target, int64_t count,
                  int64_t delta, const RopeTable& rope);

// Check what ShiftSlots checks first.
Status ValidateShift(const FrameKv& frame, const SlotPhase& phase, int64_t source, int64_t target, int64_t count,
                     int64_t delta, const RopeTable& rope);

}  // namespace everlong::kv
