// When to recall (both designs 3.1.2; findings.md "Cost"). The policies can be combined.
#pragma once

#include <cstdint>
#include <optional>

#include "everlong/base/status.h"

namespace everlong::os {

enum class RecallTrigger : uint8_t { kPrompt, kRecent, kPeriodic, kSignal, kTombstone };

struct RecallPolicyConfig {
  bool prompt = true;     // once a question, by its own queries
  bool recent = false;    // the designs' MVP: every `recent_every` tokens the `recent_blocks` newest blocks
  bool periodic = false;  // every `periodic_every` tokens, by the newest tokens' queries
  bool signal = false;    // on <RETRIEVE>, by the newest tokens' queries
  // Where the newest token attends to a tombstone by `tombstone_threshold` or more: what that one stands for
  // (design-one-consumer-gpu 3.2.3, "Tombstone Activation"). In what the threshold is measured is the host's affair.
  bool tombstone = false;
  float tombstone_threshold = 0.0F;
  // Of the text read last, what stays between the recalled zone and a question; the rest leaves the frame for it (it is
  // archived, so that it can come back). Measured: text between what was recalled and the question costs answers.
  int32_t prompt_rolling_tokens = 0;
  // Of a conversation since then, what comes back before what is recalled, the newest; all that the zone takes where
  // nothing is. Measured: the more turns of one kind a small model sees, the surer it answers the next question in
  // their words, whatever was recalled.
  int32_t conversation_tokens = 96;
  int32_t recent_every = 512;
  int32_t recent_blocks = 3;
  int32_t periodic_every = 128;
  // T_protect (design-four-mi100 3.3.2): for so many generated tokens what came back stays, whatever else is due; a
  // signal waits, a new question does not.
  int32_t protect_tokens = 32;
};

// kInvalidArgument unless recent_every, recent_blocks and periodic_every are positive and the other counts not
// negative, and tombstone_threshold is a number.
Status Validate(const RecallPolicyConfig& config);

// What a RecallPolicy has counted, in generated tokens, so that another one goes on from there. No count goes on beyond
// what makes its recall due or ends the protection, and those of policies that are off stay 0.
struct RecallCounts {
  int64_t since_recent = 0;
  int64_t since_periodic = 0;
  std::optional<int64_t> since_restored;  // none before anything came back
  bool signal_waits = false;
  bool operator==(const RecallCounts&) const = default;
};

// A value that counts generated (or evaluated) tokens.
class RecallPolicy {
 public:
  explicit RecallPolicy(const RecallPolicyConfig& config) : config_(config) {}
  // Counts tokens; the recall that is now due, if any: a waiting signal, then recent, then periodic.
  std::optional<RecallTrigger> Count(int64_t tokens);
  // <RETRIEVE>: kSignal now, or none: without `signal` never, while protected with a later Count.
  std::optional<RecallTrigger> Signal();
  // A tombstone is attended to: kTombstone now, or none: without `tombstone` never, and not while protected: what is
  // still needed then is still attended to.
  [[nodiscard]] std::optional<RecallTrigger> Wake() const;
  // The recall that would be due if what came back last were not protected.
  [[nodiscard]] std::optional<RecallTrigger> Waiting() const;
  // Something came back: the protection begins.
  void Restored() { counts_.since_restored = 0; }
  // Goes on from what another policy has counted, as far as this config has use for it. False, and nothing is adopted,
  // when a count is negative.
  bool Adopt(const RecallCounts& counts);
  [[nodiscard]] const RecallCounts& counts() const { return counts_; }

 private:
  [[nodiscard]] bool Protected() const {
    return counts_.since_restored && *counts_.since_restored < config_.protect_tokens;
  }
  // By the counts alone, protected or not.
  [[nodiscard]] std::optional<RecallTrigger> Due() const;

  RecallPolicyConfig config_;
  RecallCounts counts_;
};

}  // namespace everlong::os
