#include "everlong/os/recall_policy.h"

#include <string>

#include "at_least.h"

namespace everlong::os {
Status Validate(const RecallPolicyConfig& config) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("recent_every", config.recent_every, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("recent_blocks", config.recent_blocks, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("periodic_every", config.periodic_every, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("protect_tokens", config.protect_tokens, 0));
  return AtLeast("prompt_rolling_tokens", config.prompt_rolling_tokens, 0);
}

std::optional<RecallTrigger> RecallPolicy::Count(int64_t tokens) {
  since_recent_ += tokens;
  since_periodic_ += tokens;
  if (since_restored_) *since_restored_ += tokens;
  if (Protected()) return std::nullopt;
  if (signal_waits_) {
    signal_waits_ = false;
    return RecallTrigger::kSignal;
  }
  if (config_.recent && since_recent_ >= config_.recent_every) {
    since_recent_ = 0;
    return RecallTrigger::kRecent;
  }
  if (config_.periodic && since_periodic_ >= config_.periodic_every) {
    since_periodic_ = 0;
    return RecallTrigger::kPeriodic;
  }
  return std::nullopt;
}

std::optional<RecallTrigger> RecallPolicy::Signal() {
  if (!config_.signal) return std::nullopt;
  signal_waits_ = Protected();
  if (signal_waits_) return std::nullopt;
  return RecallTrigger::kSignal;
}

}  // namespace everlong::os
