#include "frame_rows.h"

#include <string>

namespace everlong::kv {

Status Validate(const FrameKv& frame, const SlotPhase& phase) {
  if (frame.k == nullptr || frame.v == nullptr) return InvalidArgumentError("frame: k or v is null");
  if (frame.layers < 1 || frame.kv_heads < 1 || frame.head_dim < 1 || frame.slots < 0) {
    return InvalidArgumentError("frame: [layers, kv_heads, slots, head_dim] is [" + std::to_string(frame.layers) +
                                ", " + std::to_string(frame.kv_heads) + ", " + std::to_string(frame.slots) + ", " +
                                std::to_string(frame.head_dim) + "]; expected positive sizes");
  }
  if (phase.half < 0 || phase.half > frame.head_dim / 2) {
    return InvalidArgumentError("phase: rotary_dim / 2 is " + std::to_string(phase.half) +
                                "; expected 0 to head_dim / 2 = " + std::to_string(frame.head_dim / 2));
  }
  if (phase.half > 0 && (phase.cos == nullptr || phase.sin == nullptr)) {
    return InvalidArgumentError("phase: cos or sin is null");
  }
  return OkStatus();
}

Status RequireRange(const char* name, int64_t first, int64_t count, int64_t limit) {
  if (first >= 0 && count >= 0 && first <= limit && count <= limit - first) return OkStatus();
  return InvalidArgumentError(std::string(name) + ": first " + std::to_string(first) + ", count " +
                              std::to_string(count) + "; expected a range in [0, " + std::to_string(limit) + ")");
}

}  // namespace everlong::kv
