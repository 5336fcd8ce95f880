// The recall policy: when to recall. Policies can be combined.
#pragma once

#include <cstdint>
#include <optional>

#include "everlong/base/status.h"

namespace everlong::os {

enum class RecallTrigger : uint8_t { kPrompt, kRecent, kPeriodic, kSignal, kTombstone };

struct RecallPolicyConfig {
  bool prompt = true;     // once a question, by its own queries
  bool recent = false;    // every `recent_every` tokens, the `recent_blocks` newest blocks
  bool periodic = false;  // every `periodic_every` tokens, by the newest tokens' queries
  bool signal = false;    // on <RETRIEVE>, by the newest tokens' queries
  // When the newest token attends to a tombstone by `tombstone_threshold` or more, recall the tokens that it stands
  // for. The host decides the unit of the threshold.
  bool tombstone = false;
  float tombstone_threshold = 0.0F;
  // How much of the text that was read last stays between the recalled zone and a question. The rest leaves the frame,
  // and can come back from the archive. Measured: text between recalled pages and question costs answers.
  int32_t prompt_rolling_tokens = 0;
  // How much of a conversation since then comes back before the recalled pages, newest first. It gets the whole zone
  // where nothing is recalled. Measured: after many turns of one kind, a small model answers the next question in their
  // words, whatever was recalled.
  int32_t conversation_tokens = 96;
  int32_t recent_every = 512;
  int32_t recent_blocks = 3;
  int32_t periodic_every = 128;
  // For so many generated tokens what came back stays, whatever else is due. A signal waits; a new question does not.
  int32_t protect_tokens = 32;
};

// kInvalidArgument unless recent_every, recent_blocks and periodic_every are positive, the other counts are not
// negative, and tombstone_threshold is a number.
Status Validate(const RecallPolicyConfig& config);

// The counts of a RecallPolicy, in generated tokens, so that another policy can go on from them. A count stops where
// its recall is due or the protection ends. The counts of policies that are off stay 0.
struct RecallCounts {
  int64_t since_recent = 0;
  int64_t since_periodic = 0;
  std::optional<int64_t> since_restored;  // none before anything came back
  bool signal_waits = false;
  bool operator==(const RecallCounts&) const = default;
};

// A value type, thread-safe as one, that counts generated (or evaluated) tokens.
class RecallPolicy {
 public:
  explicit RecallPolicy(const RecallPolicyConfig& config) : config_(config) {}
  // Count tokens, and return the recall that is now due, if any: a waiting signal, then recent, then periodic.
  std::optional<RecallTrigger> Count(int64_t tokens);
  // Take <RETRIEVE>: return kSignal now, or none: never without `signal`, and from a later Count while protected.
  std::optional<RecallTrigger> Signal();
  // Take a tombstone that is attended to: return kTombstone now, or none. None without `tombstone`, and while
  // protected: a tombstone that is still needed later is then still attended to.
  [[nodiscard]] std::optional<RecallTrigger> Wake() const;
  // Return the recall that would be due if what came back last were not protected.
  [[nodiscard]] std::optional<RecallTrigger> Waiting() const;
  // Note that something came back: the protection begins.
  void Restored() { counts_.since_restored = 0; }
  // Go on from another policy's counts, if this config uses them. Return false, and adopt nothing, if one is negative.
  bool Adopt(const RecallCounts& counts);
  [[nodiscard]] const RecallCounts& counts() const { return counts_; }

 private:
  [[nodiscard]] bool Protected() const {
    return counts_.since_restored && *counts_.since_restored < config_.protect_tokens;
  }
  // Return the recall that is due by the counts alone, protected or not.
  [[nodiscard]] std::optional<RecallTrigger> Due() const;

  RecallPolicyConfig config_;
  RecallCounts counts_;
};

}  // namespace everlong::os
