// The segmenter decides where a block ends, by rules, and by a learned trigger within them, if there is one.
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
  int32_t least_tokens = 64;     // L_min: neither a turn nor a signal ends a shorter block
  int32_t cooldown_tokens = 64;  // signals are ignored for so many tokens after one that came too soon
  // The learned trigger: the probability from which a place ends a topic, and how many tokens it reads behind a place
  // before it gives its probability.
  float topic_threshold = 0.5F;
  int32_t topic_lookahead = 0;
};

// In the last part of L_max, one in so many, a block ends where a paragraph does, or else a sentence.
inline constexpr int32_t kSoftEndShare = 8;

// kInvalidArgument unless block_tokens is positive, the threshold a number and the others are not negative.
Status Validate(const SegmenterConfig& config);

// What ends at a place of the text, weakest first. The first two count only near L_max.
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

// Why a block ends, weakest first. L_max (kLength) and the ends near it only cut a topic into blocks.
enum class BlockEnd : uint8_t {
  kLength,
  kSentence,
  kParagraph,
  kAnswer,  // the answer to a question begins behind it
  kTurn,
  kTopic,  // by the learned trigger
  kSignal,
  kQuestion,  // the text before a question leaves the frame for it
  kText,      // the end of a text
};

// A complete block. The learned trigger, a turn, a signal or the end of a text ends a topic.
struct ClosedBlock {
  TokenSpan span;
  BlockEnd ended_by = BlockEnd::kLength;
  [[nodiscard]] bool EndsTopic() const { return ended_by >= BlockEnd::kTurn; }
  bool operator==(const ClosedBlock&) const = default;
};

// A value type. Where blocks end depends on the stream, its boundaries and probabilities, not on how they are fed.
//
// The trigger ends a block of at least L_min. It takes the first place that reaches the threshold, and looks at the
// next L_min places from there. The block ends at the most probable of them, the first of equal ones. If a turn or
// signal comes before the last of these places has its probability, the block ends there instead. If a topic's end is
// not known at L_max, the block ends at L_max. A probability that reaches the threshold in a block that is too short
// silences the trigger for the cooldown, as a signal silences signals. A value type, thread-safe as one.
class Segmenter {
 public:
  explicit Segmenter(const SegmenterConfig& config) : config_(config) {}
  // Note a boundary. They come in order of position, before Cut is asked about the tokens before them.
  void Note(const Boundary& boundary);
  // Note the probability that a topic ends right before token `end - topic_lookahead` of the stream, when `end` tokens
  // were read. They come in order, before Cut is asked about `end`.
  void NoteProbability(int64_t end, float probability);
  // Return blocks that are complete in [open_from, stream_end), oldest first. What lies before their end is forgotten.
  [[nodiscard]] std::vector<ClosedBlock> Cut(int64_t open_from, int64_t stream_end);
  // Do the same, and return the rest as a last, shorter block, however short. `why` says what ends it here.
  [[nodiscard]] std::vector<ClosedBlock> CutAll(int64_t open_from, int64_t stream_end, BlockEnd why = BlockEnd::kText);
  // Return the positions of signals that were ignored since the last call: too soon, or within the cooldown.
  [[nodiscard]] std::vector<int64_t> TakePassedOver() { return std::exchange(passed_over_, {}); }
  // Start the open block anew at a place without a past: nothing is noted.
  void Restart();
  // Signals before this token of the stream are ignored.
  [[nodiscard]] int64_t cooldown_until() const { return cooldown_until_; }
  void PassOverUntil(int64_t cooldown_until) { cooldown_until_ = cooldown_until; }

 private:
  // A place that reaches the threshold.
  struct TopicEnd {
    int64_t position = 0;
    float probability = 0;
  };
  // Where the trigger would end a block that begins at `begin`, and at which token of the stream that is decided. It is
  // the best of the places that are known by now.
  struct TopicCut {
    int64_t position = 0;
    int64_t decided_at = 0;
  };
  [[nodiscard]] std::optional<TopicCut> TopicFrom(int64_t begin) const;
  // Ignore signals within a block that is too short to end at them.
  void PassOverTooSoon(int64_t begin, int64_t stream_end);
  // Return the block that begins at `begin`; none while it is open.
  std::optional<ClosedBlock> BlockFrom(int64_t begin, int64_t stream_end);
  // Forget what lies at or before `position`.
  void ForgetUntil(int64_t position);

  SegmenterConfig config_;
  std::vector<TopicEnd> topic_ends_;  // ahead of the last cut
  std::vector<Boundary> noted_;       // ahead of the last cut, without signals that were ignored
  std::vector<int64_t> passed_over_;
  int64_t cooldown_until_ = 0;
};

}  // namespace everlong::os
