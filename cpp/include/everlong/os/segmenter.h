// Where a block ends (design-four-mi100 3.2.1.2): rules, and where there is one the learned trigger, whose
// probabilities the rules bound.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"

namespace everlong::os {

struct SegmenterConfig {
  int32_t block_tokens = 512;    // L_max: a block never gets longer
  int32_t least_tokens = 64;     // L_min: neither a turn nor a signal ends a block that is shorter
  int32_t cooldown_tokens = 64;  // after a signal that came too soon, signals are passed over for so many tokens
  // Of the learned trigger: from which probability on a place ends a topic, and how many tokens it reads behind a place
  // before it gives one.
  float topic_threshold = 0.5F;
  int32_t topic_lookahead = 0;
};

// In the last part of L_max, one in so many, a block ends where a paragraph does, or else a sentence.
inline constexpr int32_t kSoftEndShare = 8;

// kInvalidArgument unless block_tokens is positive, the threshold a number and the others are not negative.
Status Validate(const SegmenterConfig& config);

// What ends at a place of the text, weakest first. The first two are heeded near L_max only.
enum class BoundaryKind : uint8_t {
  kSentence,
  kParagraph,
  kTurn,    // of a conversation
  kSignal,  // <SUMMARIZE>, by the model or through the API
};

// A block may end before token `position` of the stream.
struct Boundary {
  int64_t position = 0;
  BoundaryKind kind = BoundaryKind::kSentence;
};

// Why a block ends, weakest first. L_max (kLength) and what lies near it only cut a topic into blocks.
enum class BlockEnd : uint8_t {
  kLength,
  kSentence,
  kParagraph,
  kAnswer,  // the answer to what was asked begins behind it
  kTurn,
  kTopic,  // by the learned trigger
  kSignal,
  kQuestion,  // which the text before it makes room for
  kText,      // the end of a text
};

// A complete block. A topic is what the learned trigger, a turn, a signal or the end of a text closes.
struct ClosedBlock {
  TokenSpan span;
  BlockEnd ended_by = BlockEnd::kLength;
  [[nodiscard]] bool EndsTopic() const { return ended_by >= BlockEnd::kTurn; }
  bool operator==(const ClosedBlock&) const = default;
};

// A value. Where blocks end depends on the stream, its boundaries and probabilities, not on how they are fed.
//
// The trigger ends a block that is L_min or longer at the most probable of the next L_min places from the first one on
// that is not below the threshold, the first of equal ones. The block ends at a turn or signal instead that comes
// before the last of these places has its probability, and at L_max where a topic's end is not known by then. A
// probability that reaches the threshold in a block that is too short silences the trigger for the cooldown, as a
// signal silences signals.
class Segmenter {
 public:
  explicit Segmenter(const SegmenterConfig& config) : config_(config) {}
  // Boundaries are noted in order of position, before Cut is asked about the tokens before them.
  void Note(const Boundary& boundary);
  // How probable it is that a topic ends right before token `end - topic_lookahead` of the stream, of which `end`
  // tokens were read. In order, before Cut is asked about `end`.
  void NoteProbability(int64_t end, float probability);
  // Blocks that are complete in [open_from, stream_end), oldest first. What lies before their end is forgotten.
  [[nodiscard]] std::vector<ClosedBlock> Cut(int64_t open_from, int64_t stream_end);
  // The same, and the rest as a last, shorter block, however short; why: what ends it here.
  [[nodiscard]] std::vector<ClosedBlock> CutAll(int64_t open_from, int64_t stream_end, BlockEnd why = BlockEnd::kText);
  // Where the signals stood that were passed over since this was asked last: too soon, or within the cooldown.
  [[nodiscard]] std::vector<int64_t> TakePassedOver() { return std::exchange(passed_over_, {}); }
  // The open block starts anew at a place that has no past: nothing is noted.
  void Restart();
  // Signals before this token of the stream are passed over.
  [[nodiscard]] int64_t cooldown_until() const { return cooldown_until_; }
  void PassOverUntil(int64_t cooldown_until) { cooldown_until_ = cooldown_until; }

 private:
  // A place that reaches the threshold.
  struct TopicEnd {
    int64_t position = 0;
    float probability = 0;
  };
  // Where a block that begins at `begin` would end by the trigger, and at which token of the stream that is decided;
  // the best of the places that are known by now.
  struct TopicCut {
    int64_t position = 0;
    int64_t decided_at = 0;
  };
  [[nodiscard]] std::optional<TopicCut> TopicFrom(int64_t begin) const;
  // Signals within a block that is too short to end at them.
  void PassOverTooSoon(int64_t begin, int64_t stream_end);
  // The block that begins at `begin`; none while it is open.
  std::optional<ClosedBlock> BlockFrom(int64_t begin, int64_t stream_end);
  // What lies before `position` or at it is of no further use.
  void ForgetUntil(int64_t position);

  SegmenterConfig config_;
  std::vector<TopicEnd> topic_ends_;  // ahead of the last cut
  std::vector<Boundary> noted_;       // ahead of the last cut, but for signals that were passed over
  std::vector<int64_t> passed_over_;
  int64_t cooldown_until_ = 0;
};

}  // namespace everlong::os
