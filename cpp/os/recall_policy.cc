#include "everlong/os/recall_policy.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "at_least.h"

namespace everlong::os {
Status Validate(const RecallPolicyConfig& config) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("recent_every", config.recent_every, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("recent_blocks", config.recent_blocks, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("periodic_every", config.periodic_every, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("protect_tokens", config.protect_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("conversation_tokens", config.conversation_tokens, 0));
  if (!std::isfinite(config.tombstone_threshold)) {
    return InvalidArgumentError("tombstone_threshold is " + std::to_string(config.tombstone_threshold) +
                                ", expected a number");
  }
  return AtLeast("prompt_rolling_tokens", config.prompt_rolling_tokens, 0);
}

std::optional<RecallTrigger> RecallPolicy::Count(int64_t tokens) {
  auto& [since_recent, since_periodic, since_restored, signal_waits] = counts_;
  if (config_.recent) since_recent = std::min<int64_t>(since_recent + tokens, config_.recent_every);
  if (config_.periodic) since_periodic = std::min<int64_t>(since_periodic + tokens, config_.periodic_every);
  if (since_restored) since_restored = std::min<int64_t>(*since_restored + tokens, config_.protect_tokens);
  if (Protected()) return std::nullopt;
  const std::optional<RecallTrigger> due = Due();
  if (due == RecallTrigger::kSignal) signal_waits = false;
  if (due == RecallTrigger::kRecent) since_recent = 0;
  if (due == RecallTrigger::kPeriodic) since_periodic = 0;
  return due;
}

std::optional<RecallTrigger> RecallPolicy::Due() const {
  if (counts_.signal_waits) return RecallTrigger::kSignal;
  if (config_.recent && counts_.since_recent == config_.recent_every) return RecallTrigger::kRecent;
  if (config_.periodic && counts_.since_periodic == config_.periodic_every) return RecallTrigger::kPeriodic;
  return std::nullopt;
}

std::optional<RecallTrigger> RecallPolicy::Waiting() const { return Protected() ? Due() : std::nullopt; }

std::optional<RecallTrigger> RecallPolicy::Signal() {
  if (!config_.signal) return std::nullopt;
  counts_.signal_waits = Protected();
  if (counts_.signal_waits) return std::nullopt;
  return RecallTrigger::kSignal;
}

std::optional<RecallTrigger> RecallPolicy::Wake() const {
  if (!config_.tombstone || Protected()) return std::nullopt;
  return RecallTrigger::kTombstone;
}

bool RecallPolicy::Adopt(const RecallCounts& counts) {
  if (counts.since_recent < 0 || counts.since_periodic < 0 || counts.since_restored.value_or(0) < 0) return false;
  counts_ = counts;
  counts_.since_recent = config_.recent ? std::min<int64_t>(counts.since_recent, config_.recent_every) : 0;
  counts_.since_periodic = config_.periodic ? std::min<int64_t>(counts.since_periodic, config_.periodic_every) : 0;
  if (counts.since_restored) {
    counts_.since_restored = std::min<int64_t>(*counts.since_restored, config_.protect_tokens);
  }
  counts_.signal_waits = config_.signal && counts.signal_waits;
  return true;
}

}  // namespace everlong::os
