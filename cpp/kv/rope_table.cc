#include "everlong/kv/rope_table.h"

#include <cmath>
#include <string>

#include "everlong/base/check.h"
#include "everlong/kv/position_phase.h"

namespace everlong::kv {

void RopeTable::CosSin(int64_t position, std::span<float> cos, std::span<float> sin) const {
  EVERLONG_CHECK(cos.size() == inv_freq.size() && sin.size() == inv_freq.size());
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const Phase phase = PhaseAt(position, inv_freq[i], attention_scaling);
    cos[i] = phase.c;
    sin[i] = phase.s;
  }
}

Status Validate(const RopeTable& rope, int32_t head_dim) {
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    if (!std::isfinite(rope.inv_freq[i])) {
      return InvalidArgumentError("inv_freq[" + std::to_string(i) + "] is " + std::to_string(rope.inv_freq[i]) +
                                  "; expected a finite number of radians a position");
    }
  }
  if (!std::isfinite(rope.attention_scaling) || rope.attention_scaling <= 0) {
    return InvalidArgumentError("attention_scaling is " + std::to_string(rope.attention_scaling) +
                                "; expected a positive number");
  }
  if (rope.inv_freq.size() > static_cast<size_t>(head_dim) / 2) {
    return InvalidArgumentError("rotary_dim is " + std::to_string(2 * rope.inv_freq.size()) +
                                " (twice inv_freq's size); " +
                                "expected at most head_dim = " + std::to_string(head_dim));
  }
  return OkStatus();
}

}  // namespace everlong::kv
