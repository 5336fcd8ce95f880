// When to recall (both designs 3.1.2; findings.md "Cost").
#pragma once

#include <cstdint>
#include <optional>

#include "everlong/base/status.h"

namespace everlong::os {

enum class RecallTrigger : uint8_t { kPrompt, kRecent };

struct RecallPolicyConfig {
  bool prompt = true;   // once a question, by its own queries
  bool recent = false;  // the designs' MVP: every `recent_every` tokens the `recent_blocks` newest blocks
  // Of the text read last, what stays between the recalled zone and a question; the rest leaves the frame for it (it is
  // archived, so that it can come back). Measured: text between what was recalled and the question costs answers. A
  // conversation since then stays in any case.
  int32_t prompt_rolling_tokens = 0;
  int32_t recent_every = 512;
  int32_t recent_blocks = 3;
};

// kInvalidArgument unless recent_every and recent_blocks are positive and prompt_rolling_tokens is not negative.
Status Validate(const RecallPolicyConfig& config);

class RecallPolicy {
 public:
  explicit RecallPolicy(const RecallPolicyConfig& config) : config_(config) {}
  // Counts generated (or evaluated) tokens; true when a recall of recent blocks is due, and starts counting anew.
  // Always false without `recent`.
  bool Count(int64_t tokens);
  [[nodiscard]] const RecallPolicyConfig& config() const { return config_; }

 private:
  RecallPolicyConfig config_;
  int64_t since_recall_ = 0;
};

}  // namespace everlong::os
