// Taking the rotation off keys, putting it on, and moving it (both designs, 3.1.1). Torch-free; parallel through
// base/parallel_for.h; safe to call from several threads on disjoint buffers. Arithmetic in fp32 from kv/element.h, one
// rounding to the element type at the end. fp16, bf16 and fp32.
#pragma once

#include <cstdint>
#include <span>

#include "everlong/base/dtype.h"
#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// A batch of key rows: row (b, h, t) of D contiguous elements starts at b*stride_b + h*stride_h + t*stride_t.
struct KeyRows {
  const void* in = nullptr;
  void* out = nullptr;  // contiguous [B, H, T, D]; may equal `in` when that is contiguous too
  DType dtype = DType::kFloat32;
  int64_t batch = 0, heads = 0, tokens = 0;
  int32_t head_dim = 0;
  int64_t stride_b = 0, stride_h = 0, stride_t = 0;  // of `in`, in elements
};

// out = R^-1 in with the cos, sin [tokens, half] (m included) of the forward: k = (K c - rot(K) s) / (c^2 + s^2).
void DerotateRows(const KeyRows& rows, const float* cos, const float* sin, int32_t half, Pairing pairing);

// out = m R(position[t]) in.
void RerotateRows(const KeyRows& rows, std::span<const int64_t> positions, const RopeTable& rope);

// Frame re-base: slots [source, source + count) move to [target, target + count) (the ranges may overlap) in k and v of
// every layer, and the moved keys turn by `delta` positions; `phase` moves and composes with them. m stays as it is.
// kInvalidArgument when a range leaves the frame or delta is kPositionLimit or more.
Status ShiftSlots(const FrameKv& frame, const SlotPhase& phase, int64_t source, int64_t target, int64_t count,
                  int64_t delta, const RopeTable& rope);

// What ShiftSlots checks first.
Status ValidateShift(const FrameKv& frame, const SlotPhase& phase, int64_t source, int64_t target, int64_t count,
                     int64_t delta, const RopeTable& rope);

}  // namespace everlong::kv
