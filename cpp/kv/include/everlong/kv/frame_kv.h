// The frame's buffers as the core sees them: raw pointers. The caller owns them, and they are valid during a call.
#pragma once

#include <cstdint>

#include "everlong/base/dtype.h"

namespace everlong::kv {

// The rotated keys and the values of all archived layers. Element (layer, head, slot, d) of k lies at k[layer *
// layer_stride + head * head_stride + slot * head_dim + d]; v likewise. Strides are in elements.
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

// The rotation of the key in each slot, exactly as it was applied: cos, sin [slots, rotary_dim / 2], fp32, with the
// attention scaling. It is written with the key, composed when the slot is re-based, and used to un-rotate the key.
struct SlotPhase {
  float* cos = nullptr;
  float* sin = nullptr;
  int32_t half = 0;  // rotary_dim / 2
};

// The target of a run of tokens of one archived page.
struct PagePlacement {
  int64_t byte_offset = 0;  // of the page in the payload
  int32_t page_tokens = 0;  // tokens that the page holds, for its layout
  int32_t first_token = 0;  // first token of the page to restore
  int32_t tokens = 0;       // how many
  int64_t slot = 0;         // slot of the first token
  int64_t position = 0;     // frame position of the first token; the others follow
};

}  // namespace everlong::kv
