#include "everlong/os/recall_policy.h"

#include <string>

namespace everlong::os {

Status Validate(const RecallPolicyConfig& config) {
  if (config.recent_every < 1) {
    return InvalidArgumentError("recent_every is " + std::to_string(config.recent_every) + ", expected at least 1");
  }
  if (config.recent_blocks < 1) {
    return InvalidArgumentError("recent_blocks is " + std::to_string(config.recent_blocks) + ", expected at least 1");
  }
  if (config.prompt_rolling_tokens < 0) {
    return InvalidArgumentError("prompt_rolling_tokens is " + std::to_string(config.prompt_rolling_tokens) +
                                ", expected at least 0");
  }
  return OkStatus();
}

bool RecallPolicy::Count(int64_t tokens) {
  if (!config_.recent) return false;
  since_recall_ += tokens;
  if (since_recall_ < config_.recent_every) return false;
  since_recall_ = 0;
  return true;
}

}  // namespace everlong::os
