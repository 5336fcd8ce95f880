// The Memory OS (both designs, 2.1): sees token ids and counts, decides what is archived, evicted and recalled, and says
// so as a list of actions. It never touches a tensor; the host executes the actions in order.
//
// Values: a MemoryOs is copyable, so a question that must leave no trace runs on a copy. Not thread-safe.
//
// Frame positions. Before anything has left the frame the stream lies at positions 0, 1, 2 ... as in a plain forward.
// From the first eviction on:
//
//   | sinks        | unused | recalled          | rolling                      |
//   0 .. S           ...      .. S + R            S + R .. S + R + rolling
//
// Recalled pages are right-aligned against rolling, so that a recall moves no resident key (findings.md "Positions").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/os/memory.h"
#include "everlong/os/recall_policy.h"
#include "everlong/os/residency.h"
#include "everlong/os/segmenter.h"

namespace everlong::os {

enum class State : uint8_t { kGenerating, kArchiving, kRetrieving };

struct MemoryOsConfig {
  ResidencyConfig residency;
  SegmenterConfig segmenter;
  RecallPolicyConfig recall;
};

Status Validate(const MemoryOsConfig& config);

// Copy the KV of this span of the stream (resident: sinks or rolling) to the store as one block.
struct ArchiveAction {
  TokenSpan span;
  int32_t sink_tokens = 0;
};
// Drop the oldest `tokens` of the rolling zone; the rest moves to the zone's start and turns by `delta` positions.
struct EvictAction {
  int64_t tokens = 0;
  int64_t delta = 0;
};
// Ask for pages: by the prompt's own queries, or simply the most recent blocks.
struct RecallAction {
  RecallTrigger trigger = RecallTrigger::kPrompt;
  int32_t blocks = 0;  // kRecent: how many
};
using Action = std::variant<ArchiveAction, EvictAction, RecallAction>;

// One run of tokens to restore into the recalled zone.
struct Placement {
  PageRef page;
  int32_t first_token = 0;  // within the page
  int32_t tokens = 0;
  int64_t position = 0;     // frame position of the first
};

// How tokens came into the frame.
enum class Origin : uint8_t { kRead, kPrompt, kGenerated };

// One decision, for people: what was decided at which token of the stream.
struct Event {
  int64_t stream_position = 0;
  State state = State::kGenerating;
  std::string what;        // "archive", "evict", "recall", "restore", "clear"
  TokenSpan span;          // of the stream, where there is one
  int64_t tokens = 0;
  std::vector<int64_t> blocks;  // restore: which came back
};

class MemoryOs {
 public:
  explicit MemoryOs(const MemoryOsConfig& config);  // CHECKs Validate(config)

  // --- before a forward
  // How many more tokens the frame takes now; a chunk is at most this long.
  [[nodiscard]] int64_t Room() const;
  // Frame position of the next token.
  [[nodiscard]] int64_t NextPosition() const;

  // --- after a forward put `tokens` new tokens at the end of the frame
  std::vector<Action> Observe(int64_t tokens, Origin origin);
  // The text ends here (end of a source, close): archive what is left as a last block.
  std::vector<Action> EndOfText();

  // --- recall
  // A question is about to be read: the actions of the policy for it (a RecallAction kPrompt, or none).
  std::vector<Action> BeginPrompt();
  // Fills the recalled zone with these pages, first to last in frame order; what is resident already, what are sinks
  // and what exceeds the zone (the first pages are dropped) is left out. Replaces what was recalled before.
  std::vector<Placement> Recall(std::span<const PageRef> pages);
  void ClearRecalled();

  // --- a new process goes on with an archived stream of `stream_end` tokens: which pages of it to restore where, given
  // all pages of the stream in order of time. Sinks first, then the newest tokens as rolling.
  std::vector<Placement> Resume(int64_t stream_end, std::span<const PageRef> pages);

  // Off: nothing observed is archived (a question that must leave no trace, a perplexity).
  void SetArchiving(bool on);
  [[nodiscard]] bool archiving() const;

  [[nodiscard]] State state() const;
  [[nodiscard]] int64_t stream() const;
  [[nodiscard]] int64_t stream_end() const;       // tokens observed so far
  [[nodiscard]] int64_t archived_until() const;
  [[nodiscard]] TokenSpan rolling() const;        // span of the stream in the rolling zone
  [[nodiscard]] int64_t sinks() const;            // sink tokens in the frame
  [[nodiscard]] int64_t recalled_tokens() const;  // in the recalled zone now
  [[nodiscard]] const MemoryOsConfig& config() const;
  [[nodiscard]] const std::vector<Event>& trace() const;

 private:
  MemoryOsConfig config_;
  Segmenter segmenter_;
  Residency residency_;
  RecallPolicy policy_;
  State state_ = State::kGenerating;
  bool archiving_ = true;
  int64_t archived_until_ = 0;
  std::vector<Event> trace_;
};

}  // namespace everlong::os
