// The frame's buffers as the core sees them: raw pointers, owned by the caller, valid for the duration of a call.
#pragma once

#include <cstdint>

#include "everlong/base/dtype.h"

namespace everlong::kv {

// Rotated keys and values of all archived layers. Element (layer, head, slot, d) of k lies at
// k[layer * layer_stride + head * head_stride + slot * head_dim + d]; v likewise. Strides in elements.
struct FrameKv {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kFloat32;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t slots = 0;
  int64_t layer_stride = 0;
  int64_t head_stride = 0;
};

// The rotation that the key in each slot carries, exactly as it was applied: cos, sin [slots, rotary_dim / 2], fp32,
// attention scaling included. Written with the key, composed when the slot is re-based, used to un-rotate it.
struct SlotPhase {
  float* cos = nullptr;
  float* sin = nullptr;
  int32_t half = 0;  // rotary_dim / 2
};

// Where a run of tokens of one archived page goes.
struct PagePlacement {
  int64_t byte_offset = 0;  // of the page in the payload
  int32_t page_tokens = 0;  // tokens the page holds (its layout)
  int32_t first_token = 0;  // first token of the page to restore
  int32_t tokens = 0;       // how many
  int64_t slot = 0;         // slot of the first
  int64_t position = 0;     // frame position of the first; the others follow
};

}  // namespace everlong::kv
