// The Memory OS: a state machine that decides what to archive, evict and recall. It sees token ids and counts, and
// returns its decisions as a list of actions. It never touches a tensor. The host executes the actions in order.
//
// A MemoryOs is a copyable value. So a question that must leave nothing behind runs on a copy, a Branch(). Not
// thread-safe.
//
// Frame positions. Before anything has left the frame, the stream lies at positions 0, 1, 2 ... as in a plain forward.
// From the first eviction, the zones lie one behind the other (zones.cc), and rolling behind them:
//
//   | sinks | tombstones | anchors | kept | unused | recalled      | rolling                                  |
//   0 .. S    .. S + tombstones .. S + A .. S + A + N ..  ..  P - 1  P = S + A + N + R .. P + rolling
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "everlong/base/page_ref.h"
#include "everlong/base/role.h"
#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/os/event.h"
#include "everlong/os/offer.h"
#include "everlong/os/recall_policy.h"
#include "everlong/os/residency.h"
#include "everlong/os/segmenter.h"

namespace everlong::os {

enum class State : uint8_t { kGenerating, kArchiving, kRetrieving };

struct MemoryOsConfig {
  int64_t stream = 0;  // the stream of the memory that this frame reads
  ResidencyConfig residency;
  SegmenterConfig segmenter;
  RecallPolicyConfig recall;
};

// kInvalidArgument unless every part is valid, stream >= 0, there are tombstones where the policy uses them, and
// rolling_tokens >= block_tokens. Less than a block is not archived yet, so only archived tokens ever leave the frame.
Status Validate(const MemoryOsConfig& config);

// Copy the KV of this span of the stream to the store as one block. The span is resident, as sinks or rolling. Blocks
// tile the stream, and the first one holds the sinks too: `sink_tokens` of the span's first tokens are the stream's
// sinks. All tokens of a block have one role: a block ends where the role changes, however short it is.
struct ArchiveAction {
  TokenSpan span;
  int32_t sink_tokens = 0;
  Role role = Role::kRead;
};
// Drop the oldest `tokens` of the rolling zone. The rest moves to the zone's start and turns by `delta` positions. That
// is -tokens, except for the first eviction, which moves rolling behind the recalled zone; delta may then be positive.
struct EvictAction {
  int64_t tokens = 0;
  int64_t delta = 0;
  std::vector<Keep> keeps;                // to do first: what of them stays in the anchor zone
  std::vector<int64_t> anchor_positions;  // afterwards: frame positions of all slots of the anchor zone
};
// Ask for pages: by queries of the prompt or of the newest tokens, or the newest blocks, or a tombstone's span.
struct RecallAction {
  RecallTrigger trigger = RecallTrigger::kPrompt;
  int32_t blocks = 0;   // kRecent: how many
  TokenSpan span = {};  // kTombstone: of the stream
};
// Score the tokens of a block, and say which `tokens` of them are the best (Choose). It comes right behind the block's
// ArchiveAction, once the archive has its snapshot, and before an EvictAction that may follow. Where a block that an
// earlier process archived is fed again, there is no ArchiveAction before it.
struct TrimAction {
  TokenSpan block;
  int64_t tokens = 0;           // K, at least 1
  std::vector<TokenSpan> from;  // runs of the block to choose from, in order: at least K tokens
};
using Action = std::variant<ArchiveAction, TrimAction, EvictAction, RecallAction>;

// How tokens came into the frame.
enum class Origin : uint8_t { kRead, kPrompt, kGenerated };
Role RoleOf(Origin origin);  // read, asked or said

// A request of the model, by a control token, or of a host, through the API.
enum class Signal : uint8_t { kSummarize, kRetrieve };

// One decision, for people: what was decided, and at which token of the stream.
struct Event {
  int64_t stream = 0;
  int64_t stream_position = 0;
  State state = State::kGenerating;
  EventKind what = EventKind::kArchive;
  TokenSpan span;  // of the stream, where there is one
  int64_t tokens = 0;
  std::vector<RestoredRun> restored = {};  // kRestore: what came back, in frame order
  std::optional<RecallTrigger> trigger =
      std::nullopt;                                 // kRecall, kRecallWaits: what asked for it; kTombstone: see `span`
  std::optional<BlockEnd> ended_by = std::nullopt;  // kArchive: why the block ends there
  // Set if it was decided in a Branch(): the token at which that left the stream. Nothing decided there stays.
  std::optional<int64_t> branched_at = std::nullopt;
};

// The state that Resume continues from: an archived stream, and a frame of an earlier process. That frame's part may
// come from disk. Where nothing is CHECKed, impossible numbers are cut to what a frame can have.
struct ResumeState {
  // Tokens of the stream that count as observed, at least 0 (CHECKed). The newest of them are in rolling.
  int64_t stream_end = 0;
  // All pages of the stream that the memory holds, in order of time. Pages of other streams are ignored.
  std::vector<PageRef> pages = {};
  // Where that frame's rolling began. Without it, rolling is the newest M tokens.
  std::optional<int64_t> rolling_from = std::nullopt;
  // One past the newest token that was read. The tokens behind it were said, so they stay before the next question as
  // they would have. Without it, all was read.
  std::optional<int64_t> read_until = std::nullopt;
  // What that frame's zones saved. It is taken over where it fits (Residency::Open) and all of its text is among the
  // pages.
  SavedZones zones = {};
  // What that frame's policy had counted (RecallPolicy::Adopt). Without it, counting begins anew.
  std::optional<RecallCounts> recall_counts = std::nullopt;
  // Signals before this token of the stream are ignored, where a stream of this length can have such a cooldown.
  int64_t cooldown_until = 0;
  // One past the newest archived token, at least stream_end (CHECKed). The host feeds the tokens from stream_end to
  // there again, as they were fed before, and none is archived a second time. Without it, all that is archived lies
  // before stream_end, and another text comes next.
  std::optional<int64_t> archived_until = std::nullopt;
};

// The most trace events that are kept. Beyond it the oldest tenth is dropped.
inline constexpr size_t kTraceCapacity = 10000;

class MemoryOs {
 public:
  explicit MemoryOs(const MemoryOsConfig& config);  // CHECKs Validate(config)
  // Use these zones in place of those of the config.
  MemoryOs(const MemoryOsConfig& config, ZoneList zones);

  // --- before a forward
  // Return how many more tokens the frame takes now. A chunk is at most this long. At least 1 after every call.
  [[nodiscard]] int64_t Room() const;
  // Return the frame position of the next token.
  [[nodiscard]] int64_t NextPosition() const;

  // --- after a forward put `tokens` (0 .. Room(), CHECKed) new tokens at the end of the frame
  // Archive complete blocks, also one that ends where the role changes, then evict, then ask for a recall. Execute the
  // returned actions in order. The state of the OS already reflects them. Spans are of the stream. Only kGenerated
  // counts for the recall policies. `boundaries` say where blocks may end: in order, each within the new tokens or at
  // their ends. `topic_probabilities` are the learned trigger's outputs after each new token
  // (Segmenter::NoteProbability): one a token, or none. `tombstone_scores` say how much the newest token attends to
  // each of frame().StandIns() before this call, in its order, or none (CHECKed). With generated tokens the
  // highest score from `tombstone_threshold` wakes its tombstone, if no other policy asks for a recall. The tombstone
  // that woke last is skipped while its recall is still in the frame.
  std::vector<Action> Observe(int64_t tokens, Origin origin, std::span<const Boundary> boundaries = {},
                              std::span<const float> topic_probabilities = {},
                              std::span<const float> tombstone_scores = {});
  // Raise a signal right after the newest token. kSummarize ends the open block if that is long enough. kRetrieve asks
  // for a recall if the policy uses signals, but waits while what came back is protected.
  std::vector<Action> Raise(Signal signal);
  // End the text (end of a source, close): archive what is left as a last block.
  std::vector<Action> EndOfText();

  // Answer the oldest TrimAction without an answer. Tokens are of the stream, best first, at most K of those that may
  // be chosen (CHECKed). None: the whole block leaves. Until all are answered, only const calls are allowed (CHECKed).
  void Choose(std::span<const int64_t> tokens);
  [[nodiscard]] const TrimAction* choice_due() const;  // that action; nullptr: none

  // --- recall
  // Call it before a question is read. It returns the policy's actions, or none. Rolling is narrowed to
  // prompt_rolling_tokens, by ArchiveActions for the open block and an EvictAction. Then follows a RecallAction
  // kPrompt. While nothing has left the frame, there is no recalled zone and nothing is narrowed, since all of the
  // stream is resident. A conversation since text was last read leaves rolling too. It comes back before what is
  // recalled, as `conversation()`, because a model was measured to take turns right before the question for the answer.
  // Tokens that could not come back stay: those that are not archived in a frame that archives no more, and all where
  // there is no recalled zone.
  std::vector<Action> BeginPrompt();
  // Fill the recalled zone with what PlaceOffers makes of these offers, in place of what was recalled before. Nothing
  // is placed while nothing has left the frame.
  std::vector<Placement> Recall(std::span<const Offer> offers);
  void ClearRecalled();

  // --- a new process goes on with an archived stream
  // Return which pages to restore where. Sinks come first, then the newest tokens as rolling, as far back as the pages
  // have no gap. All tokens are at their plain positions when nothing of the stream is left out.
  std::vector<Placement> Resume(const ResumeState& from);

  // Archive nothing that is observed from now on, nor the open block. Anything may then be evicted.
  void StopArchiving();
  [[nodiscard]] bool archiving() const;

  // Return a copy for work that must leave nothing behind, such as a question or a perplexity. It archives nothing. Its
  // events say where it left the stream; for a branch of a branch, where the first one did.
  [[nodiscard]] MemoryOs Branch() const;
  // Take over the trace of a Branch() of this one (CHECKed to be a branch), so that people see what was decided for a
  // question. Do not call it for a branch that only reads a question for its queries. The question is then read again,
  // so what leaves the frame meanwhile says nothing about its answer.
  void TakeTrace(const MemoryOs& branch);

  [[nodiscard]] State state() const;
  [[nodiscard]] int64_t stream() const;      // the config's
  [[nodiscard]] int64_t stream_end() const;  // tokens observed so far
  // Return one past the newest token in a block. It is beyond stream_end() while such tokens are fed again.
  [[nodiscard]] int64_t archived_until() const;
  [[nodiscard]] int64_t read_until() const;  // one past the newest token that was read, not asked or generated
  // Return what left rolling for the question of the last BeginPrompt() and was said since text was read: the newest
  // tokens, as many as the recalled zone holds. Empty after ClearRecalled().
  [[nodiscard]] TokenSpan conversation() const;
  [[nodiscard]] TokenSpan rolling() const;                             // span of the stream in the rolling zone
  [[nodiscard]] int64_t sinks() const;                                 // sink tokens in the frame
  [[nodiscard]] const Residency& frame() const { return residency_; }  // zones, and who lies where
  // Return the first token of the open block: not archived yet, or, where it is fed again, not trimmed yet.
  [[nodiscard]] int64_t open_from() const;
  [[nodiscard]] const RecallCounts& recall_counts() const;
  [[nodiscard]] int64_t cooldown_until() const;   // Segmenter
  [[nodiscard]] int64_t recalled_tokens() const;  // in the recalled zone now
  [[nodiscard]] bool evicted() const;  // whether anything has left the frame, so that there is a recalled zone
  [[nodiscard]] const std::vector<Event>& trace() const;
  [[nodiscard]] std::optional<int64_t> branched_at() const;  // of a Branch(): the stream's token that it began before

 private:
  void Archive(const std::vector<ClosedBlock>& blocks, std::vector<Action>& actions);
  // Begin a role at token `begin`. An open block of another role ends there.
  void BeginRole(Role role, int64_t begin, std::vector<Action>& actions);
  void Evict(int64_t tokens, std::vector<Action>& actions);
  // Keep only the newest `tokens` of rolling. Archive the open block first where that is needed.
  void NarrowRolling(int64_t tokens, std::vector<Action>& actions);
  void AskRecall(RecallTrigger trigger, std::vector<Action>& actions, TokenSpan span = {});
  // Return the span of the tombstone that wakes by these scores; empty: none.
  [[nodiscard]] TokenSpan Waking(std::span<const float> scores) const;
  // Ask which tokens to keep of a block that was just closed.
  void Trim(TokenSpan block, std::vector<Action>& actions);
  // Let chosen tokens that have left rolling enter their zone, once no choice is due any more.
  void Settle();
  // Of Resume: the frame's state and where pages go; the blocks that are fed again.
  std::vector<Placement> ResumeFrame(const ResumeState& from);
  void FeedAgain(const ResumeState& from);
  void RecordPassedOver(int64_t position);
  // Record an event. The caller fills in what only some kinds have.
  Event& Record(EventKind what, TokenSpan span, int64_t tokens);
  void Record(std::span<const ZoneEvent> events);
  Event& Append(Event event);

  MemoryOsConfig config_;
  Segmenter segmenter_;
  Residency residency_;
  RecallPolicy policy_;
  State state_ = State::kGenerating;
  bool archiving_ = true;
  int64_t archived_until_ = 0;
  int64_t read_until_ = 0;
  TokenSpan conversation_;
  TokenSpan asked_span_;              // of the tombstone whose recall the host must answer
  TokenSpan woken_span_;              // of the tombstone that the last recall was for
  std::deque<TrimAction> due_;        // not answered yet
  std::deque<TokenSpan> fed_blocks_;  // archived by an earlier process, and not all fed again yet
  Role role_ = Role::kRead;           // of the newest tokens, and so of the open block
  std::optional<int64_t> branched_at_;
  std::vector<Event> trace_;
  size_t recorded_ = 0;  // events since this one was made or branched, with the dropped ones
};

}  // namespace everlong::os
