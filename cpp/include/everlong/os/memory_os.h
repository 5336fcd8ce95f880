// The Memory OS (both designs, 2.1): sees token ids and counts, decides what is archived, evicted and recalled, and
// says so as a list of actions. It never touches a tensor; the host executes the actions in order.
//
// Values: a MemoryOs is copyable, so a question of which nothing may stay runs on a copy, a Branch(). Not thread-safe.
//
// Frame positions. Before anything has left the frame the stream lies at positions 0, 1, 2 ... as in a plain forward.
// From the first eviction on:
//
//   | sinks | tombstones | anchors | kept | unused | recalled      | rolling                                  |
//   0 .. S    .. S + tombstones .. S + A .. S + A + N ..  ..  P - 1  P = S + A + N + R .. P + rolling
//
// Recalled pages are right-aligned against rolling, so that a recall moves no resident key (findings.md "Positions").
// Kept tokens stand without gaps, in order of time, from S + A on. Those of a page that is recalled are hidden as long
// as it is there: it comes back whole, and no token stands in the frame twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "everlong/base/page_ref.h"
#include "everlong/base/role.h"
#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/os/recall_policy.h"
#include "everlong/os/residency.h"
#include "everlong/os/segmenter.h"

namespace everlong::os {

enum class State : uint8_t { kGenerating, kArchiving, kRetrieving };

struct MemoryOsConfig {
  int64_t stream = 0;  // which stream of the memory this frame reads
  ResidencyConfig residency;
  SegmenterConfig segmenter;
  RecallPolicyConfig recall;
};

// kInvalidArgument unless every part is valid, stream >= 0, there are tombstones where they are heeded, and
// rolling_tokens >= block_tokens: what is not archived yet is less than a block, so that only archived tokens ever
// leave the frame.
Status Validate(const MemoryOsConfig& config);

// Copy the KV of this span of the stream (resident: sinks or rolling) to the store as one block. Blocks tile the
// stream; the first holds the sinks too: `sink_tokens` of the span's first tokens are the stream's sinks. All tokens of
// a block have one role: it ends where the role changes, however short it is.
struct ArchiveAction {
  TokenSpan span;
  int32_t sink_tokens = 0;
  Role role = Role::kRead;
};
// Drop the oldest `tokens` of the rolling zone; the rest moves to the zone's start and turns by `delta` positions:
// -tokens, but for the first eviction, which moves rolling behind the recalled zone (delta may be positive).
struct EvictAction {
  int64_t tokens = 0;
  int64_t delta = 0;
  std::vector<Keep> keeps;                // first: what of them stays in the anchor zone
  std::vector<int64_t> anchor_positions;  // then: frame positions of all its slots
};
// Ask for pages: by the queries of the prompt or of the newest tokens, or simply the most recent blocks, or those of a
// tombstone's span.
struct RecallAction {
  RecallTrigger trigger = RecallTrigger::kPrompt;
  int32_t blocks = 0;   // kRecent: how many
  TokenSpan span = {};  // kTombstone: of the stream
};
// Right behind the ArchiveAction of a block, once the archive has its snapshot: score its tokens, and say which
// `tokens` of them are the best (Choose), before the EvictAction that may follow is executed. Where a block that an
// earlier process archived is fed again, there is no ArchiveAction before it.
struct TrimAction {
  TokenSpan block;
  int64_t tokens = 0;           // K, at least 1
  std::vector<TokenSpan> from;  // runs of the block that may be chosen from, in order: at least K tokens
};
using Action = std::variant<ArchiveAction, TrimAction, EvictAction, RecallAction>;

// One run of tokens to restore into the recalled zone; or the Detail Tokens of a block, which are to be computed there:
// `page` then names the block and all its tokens, and `tokens` counts the slots that stand for them.
struct Placement {
  PageRef page;
  int32_t first_token = 0;  // within the page
  int32_t tokens = 0;
  int64_t position = 0;  // frame position of the first
  bool details = false;
};

// Of this block nothing but these tokens shall come back: those that its payload `kept` holds.
struct KeptPayload {
  int64_t block = 0;
  std::vector<int64_t> tokens;  // of the block's stream, ascending
};

// A block that shall come back as its Detail Tokens (design-four-mi100 2.3, L2): slots that stand for all of its tokens
// and are none of them.
struct DetailBlock {
  int64_t block = 0;
  int64_t stream = 0;
  TokenSpan span;  // of that stream
  int32_t slots = 0;
};

// How tokens came into the frame.
enum class Origin : uint8_t { kRead, kPrompt, kGenerated };
Role RoleOf(Origin origin);  // what was read, asked, said

// What a model says by a control token, or a host through the API (both designs, 2.1 "Signal interception").
enum class Signal : uint8_t { kSummarize, kRetrieve };

// Tokens of a block that came back.
struct RestoredRun {
  int64_t block = 0;
  int64_t stream = 0;
  TokenSpan span;            // of that stream
  int32_t detail_slots = 0;  // 0: themselves; else so many slots came in their stead
  bool operator==(const RestoredRun&) const = default;
};

// What a decision was.
enum class EventKind : uint8_t {
  kArchive,
  kEvict,
  kRecall,
  kRecallWaits,  // what came back last is protected
  kRestore,
  kLeftOut,  // tokens that were found and did not fit
  kClear,
  kResume,
  kSummarizeSignal,   // heard at span's token
  kRetrieveSignal,    // the same
  kSignalPassedOver,  // too soon after the block's begin or the last one, or no policy heeds it
  // Of the anchor zone:
  kAnchor,            // span's tokens stay
  kAnchorDropped,     // they stay no longer
  kTombstone,         // span's mean stays
  kTombstonesMerged,  // two are one, of this span
  // Of the zone "kept":
  kTrim,         // of span's block so many tokens were chosen
  kTrimAgain,    // so many are left of them
  kKeptDropped,  // none is left
};
std::string_view NameOf(EventKind kind);  // "archive", "recall waits", "tombstones merged": the enum's words

// One decision, for people: what was decided at which token of the stream.
struct Event {
  int64_t stream = 0;
  int64_t stream_position = 0;
  State state = State::kGenerating;
  EventKind what = EventKind::kArchive;
  TokenSpan span;  // of the stream, where there is one
  int64_t tokens = 0;
  std::vector<RestoredRun> restored = {};  // kRestore: what came back, in frame order
  std::optional<RecallTrigger> trigger =
      std::nullopt;                                 // kRecall, kRecallWaits: what asked for it; of kTombstone `span`
  std::optional<BlockEnd> ended_by = std::nullopt;  // kArchive: why the block ends there
  // Decided in a Branch() that left the stream at this token; of what was decided there nothing stays.
  std::optional<int64_t> branched_at = std::nullopt;
};

// An archived stream, and where a frame of an earlier process stood in it: what Resume goes on from. What that frame
// says may come from disk: where nothing is CHECKed, numbers that no frame has are cut to what one can have.
struct ResumeState {
  // Tokens of the stream that count as observed: at least 0 (CHECKed). The newest of them stand in rolling.
  int64_t stream_end = 0;
  // All pages of the stream that the memory holds, in order of time. Pages of other streams are passed over.
  std::vector<PageRef> pages = {};
  // Where that frame's rolling began; without it rolling is the newest M tokens.
  std::optional<int64_t> rolling_from = std::nullopt;
  // One past the newest token that was read. What lies behind it was said, not read, and stays before the next question
  // as it would have; without it all was read.
  std::optional<int64_t> read_until = std::nullopt;
  // What that frame's zone held. It stands in this one where it fits (Residency::Adopt) and all of its text is among
  // the pages.
  std::optional<AnchorZone> anchor_zone = std::nullopt;
  // Its zone "kept" likewise (KeptZone::Adopt). Tokens that stood in its rolling, and do not in this one, are lost.
  std::optional<KeptState> kept = std::nullopt;
  // What that frame's policy had counted (RecallPolicy::Adopt); without it counting begins anew.
  std::optional<RecallCounts> recall_counts = std::nullopt;
  // Signals before this token of the stream are passed over, where a stream of this length can have such a cooldown.
  int64_t cooldown_until = 0;
  // One past the newest archived token, at least stream_end (CHECKed): the host feeds what is archived from stream_end
  // to there again, as it was fed before, and none of it is archived a second time. Without it all that is archived
  // lies before stream_end, and what comes next is another text.
  std::optional<int64_t> archived_until = std::nullopt;
};

// Trace events kept; beyond this the oldest tenth is dropped.
inline constexpr size_t kTraceCapacity = 10000;

class MemoryOs {
 public:
  explicit MemoryOs(const MemoryOsConfig& config);  // CHECKs Validate(config)

  // --- before a forward
  // How many more tokens the frame takes now; a chunk is at most this long. At least 1 after every call.
  [[nodiscard]] int64_t Room() const;
  // Frame position of the next token.
  [[nodiscard]] int64_t NextPosition() const;

  // --- after a forward put `tokens` (0 .. Room(), CHECKed) new tokens at the end of the frame
  // Archives complete blocks, one that ends where the role changes among them, then evicts, then asks for a recall. The
  // actions are to be executed in order; the state of the OS already reflects them, and spans are of the stream. Only
  // kGenerated counts for the recall policies. `boundaries`, in order, each within the new tokens or at their ends, are
  // where blocks may end. `topic_probabilities`: what the learned trigger says once it has read each of the new tokens
  // (Segmenter::NoteProbability), as many as there are or none.
  // `tombstone_scores`: how much the newest token attends to each tombstone of anchor_zone() before this call, in its
  // order, or none (CHECKed). Of generated tokens the highest one wakes, from `tombstone_threshold` on, where no other
  // policy asks for a recall; the one that woke last is passed over while what came back for it is there.
  std::vector<Action> Observe(int64_t tokens, Origin origin, std::span<const Boundary> boundaries = {},
                              std::span<const float> topic_probabilities = {},
                              std::span<const float> tombstone_scores = {});
  // Right after the newest token: kSummarize ends the open block if that is long enough, kRetrieve asks for a recall if
  // the policy heeds signals (later, while what came back is protected).
  std::vector<Action> Raise(Signal signal);
  // The text ends here (end of a source, close): archive what is left as a last block.
  std::vector<Action> EndOfText();

  // The answer to the oldest TrimAction that has none: tokens of the stream, the best first, at most K of those that
  // may be chosen (CHECKed; none where the block's tokens shall all leave). Until all are answered nothing else is
  // decided (CHECKed of every call but the const ones).
  void Choose(std::span<const int64_t> tokens);
  [[nodiscard]] const TrimAction* choice_due() const;  // that action; nullptr: none

  // --- recall
  // A question is about to be read: the actions of the policy for it: rolling is narrowed to prompt_rolling_tokens
  // (ArchiveActions for the open block, an EvictAction), then a RecallAction kPrompt; or none. While nothing has left
  // the frame there is no recalled zone and nothing is narrowed: all of the stream is resident. A conversation since
  // the last text was read leaves rolling too, to come back before what is recalled, `conversation()`: measured, turns
  // between that and the question are taken for the answer. It stays where it could not come back: of what is not
  // archived, in a frame that archives no more, and where there is no recalled zone.
  std::vector<Action> BeginPrompt();
  // Fills the recalled zone with these pages, first to last in frame order; what is resident already (an anchor, too),
  // what are sinks of their stream and what exceeds the zone (the first tokens are dropped) is left out, and of a page
  // named twice the first mention. A page that is resident in its middle comes back in several placements.
  // Right-aligned: the last token stands just before rolling. Nothing is placed while nothing has left the frame.
  // Replaces what was recalled before.
  // `conversation`: pages of conversation(), in order of time. The newest of them stand before `pages`, whole, and not
  // there too where `pages` name them: at most conversation_tokens and half of the zone, and where nothing is placed of
  // `pages` as many as the zone takes.
  // `kept`: of the pages of such a block its chosen tokens come, each in a placement with those it stands beside; what
  // of them the zone "kept" holds stays there.
  // `details`: blocks that stand before `pages` as Detail Tokens, first to last, each with at least 1 slot (CHECKed)
  // and whole or not at all; where not all fit, the first ones are left out. Beside pages half of the zone is theirs,
  // and what pages leave of it; alone they have all of it. A block of which nothing has left the frame is left out, and
  // of one that is named twice the first mention. They hide nothing that is kept.
  std::vector<Placement> Recall(std::span<const PageRef> pages, std::span<const PageRef> conversation = {},
                                std::span<const KeptPayload> kept = {}, std::span<const DetailBlock> details = {});
  void ClearRecalled();

  // --- a new process goes on with an archived stream: which pages of it to restore where. Sinks first, then the newest
  // tokens as rolling, as far back as the pages have no gap; everything at its plain position when nothing of the
  // stream is left out.
  std::vector<Placement> Resume(const ResumeState& from);

  // From now on nothing observed is archived, an open block neither, and anything may be evicted.
  void StopArchiving();
  [[nodiscard]] bool archiving() const;

  // A copy for what must leave nothing behind, a question or a perplexity: it archives nothing, and its events say
  // where it left the stream (of a branch of a branch: where the first one did).
  [[nodiscard]] MemoryOs Branch() const;
  // Takes over what was recorded in a Branch() of this one (CHECKed to be a branch): people see what was decided for a
  // question, too. Not for a branch that only listens: a question that is read once for its queries is about to be read
  // again, and what leaves a frame meanwhile says nothing of what it is answered from.
  void TakeTrace(const MemoryOs& branch);

  [[nodiscard]] State state() const;
  [[nodiscard]] int64_t stream() const;      // the config's
  [[nodiscard]] int64_t stream_end() const;  // tokens observed so far
  // One past the newest token that was put into a block; beyond stream_end() while such tokens are fed again.
  [[nodiscard]] int64_t archived_until() const;
  [[nodiscard]] int64_t read_until() const;  // one past the newest token that was read, not asked or generated
  // What left rolling for the question of the last BeginPrompt() and was said since text was read: the newest of it, as
  // much as the recalled zone has room for. Empty after ClearRecalled().
  [[nodiscard]] TokenSpan conversation() const;
  [[nodiscard]] TokenSpan rolling() const;  // span of the stream in the rolling zone
  [[nodiscard]] int64_t sinks() const;      // sink tokens in the frame
  [[nodiscard]] const AnchorZone& anchor_zone() const;
  [[nodiscard]] const KeptZone& kept() const;
  [[nodiscard]] int64_t kept_position() const;  // frame position of the first token that the zone shows
  // The first token of the block that is open: what has not been archived, or not been trimmed, where it is fed again.
  [[nodiscard]] int64_t open_from() const;
  [[nodiscard]] const RecallCounts& recall_counts() const;
  [[nodiscard]] int64_t cooldown_until() const;                // Segmenter
  [[nodiscard]] std::vector<int64_t> AnchorPositions() const;  // frame positions of its slots
  [[nodiscard]] int64_t recalled_tokens() const;               // in the recalled zone now
  [[nodiscard]] bool evicted() const;  // whether anything has left the frame: there is a recalled zone
  [[nodiscard]] const std::vector<Event>& trace() const;
  [[nodiscard]] std::optional<int64_t> branched_at() const;  // of a Branch(): which token of the stream it began before

 private:
  void Archive(const std::vector<ClosedBlock>& blocks, std::vector<Action>& actions);
  // What comes from token `begin` on is of this role: an open block of another one ends there.
  void BeginRole(Role role, int64_t begin, std::vector<Action>& actions);
  void Evict(int64_t tokens, std::vector<Action>& actions);
  // Leaves the newest `tokens` of rolling; archives the open block first where it must.
  void NarrowRolling(int64_t tokens, std::vector<Action>& actions);
  void AskRecall(RecallTrigger trigger, std::vector<Action>& actions, TokenSpan span = {});
  // The span of the tombstone that wakes by these scores; empty: none.
  [[nodiscard]] TokenSpan Waking(std::span<const float> scores) const;
  // Asks which tokens of a block that was just closed are kept.
  void Trim(TokenSpan block, std::vector<Action>& actions);
  // What was chosen enters the zone where it has left rolling, once nothing is due any more.
  void EnterKept();
  // The runs of `page` that a recall may bring, in order: neither resident (as sinks, anchors or rolling) nor sinks of
  // their stream, whichever that is.
  [[nodiscard]] std::vector<TokenSpan> Recallable(const PageRef& page) const;
  // What of `runs` is among a block's chosen tokens and not in the zone "kept".
  [[nodiscard]] std::vector<TokenSpan> ChosenOf(std::span<const TokenSpan> runs, const PageRef& page,
                                                const KeptPayload& kept) const;
  [[nodiscard]] int64_t RecallableTokens(const PageRef& page) const;
  // Those of `details` that a recall may bring, in order, each once.
  [[nodiscard]] std::vector<DetailBlock> RecallableDetails(std::span<const DetailBlock> details) const;
  // Whether every token of these spans is among these pages of the stream, in order of time.
  [[nodiscard]] bool AllArchived(std::span<const TokenSpan> spans, std::span<const PageRef> pages) const;
  void RecordPassedOver(int64_t position);
  // The event as far as it goes without what only some kinds say, to be filled in.
  Event& Record(EventKind what, TokenSpan span, int64_t tokens);
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
  TokenSpan asked_span_;              // of the tombstone whose recall the host is to answer
  TokenSpan woken_span_;              // of the one that what came back last is for
  std::deque<TrimAction> due_;        // not answered yet
  std::deque<TokenSpan> fed_blocks_;  // archived by an earlier process, and not all fed again yet
  Role role_ = Role::kRead;           // of the newest tokens, and so of the open block
  std::optional<int64_t> branched_at_;
  std::vector<Event> trace_;
  size_t recorded_ = 0;  // events since this one was made or branched, dropped ones too
};

}  // namespace everlong::os
