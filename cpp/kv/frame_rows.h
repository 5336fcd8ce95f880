// Addresses of rows in the frame's buffers, and the checks of every call that uses them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "everlong/base/dtype.h"
#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// Return the byte `index` elements behind `base`.
inline std::byte* ElementAt(void* base, DType dtype, int64_t index) {
  return static_cast<std::byte*>(base) + index * static_cast<int64_t>(DTypeSize(dtype));
}
inline const std::byte* ElementAt(const void* base, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<int64_t>(DTypeSize(dtype));
}

// Return the index of element (layer, head, slot, 0) in frame.k and frame.v.
inline int64_t RowIndex(const FrameKv& frame, int64_t layer, int64_t head, int64_t slot) {
  return layer * frame.layer_stride + head * frame.head_stride + slot * frame.head_dim;
}

// kInvalidArgument unless the buffers exist, sizes are positive and the phase fits a head.
Status Validate(const FrameKv& frame, const SlotPhase& phase);

// kInvalidArgument unless 0 <= first <= first + count <= limit; `name` is for the message ("source", "placement 3").
Status RequireRange(const char* name, int64_t first, int64_t count, int64_t limit);

}  // namespace everlong::kv
