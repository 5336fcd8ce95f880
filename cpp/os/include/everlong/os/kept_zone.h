// The frame's zone "kept": chosen tokens of closed blocks that stay when their block is evicted.
//
// At a block's end its best tokens are chosen. They stay in rolling with the others, and enter the zone when they leave
// rolling. As blocks age, a ladder trims them again: each rung keeps half of the one before. Every rung has an equal
// share of the slots. So a zone of N slots spans about N * share * (2^rungs - 1) / rungs tokens of text. N = 3,456, one
// token of 8 and 4 rungs span 103,680.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"

namespace everlong::os {

struct KeptConfig {
  int32_t tokens = 0;  // N: slots of the zone; 0: off
  int32_t share = 8;   // a block that was just closed keeps one of so many tokens: 64 of 512
  int32_t rungs = 4;   // of the ladder: 64, 32, 16, 8 of 512
};

// kInvalidArgument unless tokens >= 0, share and rungs are positive, rungs <= kMostRungs, and the zone holds the first
// choice of a block of `block_tokens`.
Status Validate(const KeptConfig& config, int64_t block_tokens);

inline constexpr int32_t kMostRungs = 16;

// The tokens that are left of one block.
struct KeptBlock {
  TokenSpan span;
  int32_t rung = 0;
  std::vector<int64_t> tokens;  // of the stream, best first: to trim again, cut the list
  bool operator==(const KeptBlock&) const = default;
};

// The zone's whole state, for a checkpoint.
struct KeptState {
  int64_t until = 0;              // chosen tokens before it are in the zone, the others still in rolling
  std::vector<KeptBlock> blocks;  // in order of time
  bool operator==(const KeptState&) const = default;
};

// A block that was trimmed again, to so many tokens. 0: it left the zone.
struct TrimmedAgain {
  TokenSpan span;
  int64_t tokens = 0;
};

// A value type. Calls must come in the order that is described here (CHECKed).
class KeptZone {
 public:
  explicit KeptZone(const KeptConfig& config) : config_(config) {}

  // Return K, how many tokens of a block of this size stay on a rung. It is rounded up, so a short block keeps one.
  [[nodiscard]] int64_t TokensOn(int32_t rung, int64_t block_tokens) const;

  // Choose tokens of a block that was closed, behind all blocks before. Tokens come best first, each once and at or
  // behind `until`. No tokens: nothing of the block stays.
  void Choose(TokenSpan block, std::span<const int64_t> tokens);
  // Move chosen tokens before `until` into the zone, because they have left rolling. Those among `elsewhere`, spans in
  // order, do not enter: they stay as something else. Then trim again until all fits: each time the oldest block of the
  // first rung that holds more than its share of slots.
  std::vector<TrimmedAgain> Enter(int64_t until, std::span<const TokenSpan> elsewhere);
  // Take over the zone as another frame left it, where [.., until) has left rolling in this one. Tokens chosen between
  // that frame's `until` and this one are lost. Return false, and adopt nothing, for a state that no zone of this
  // config can have, or with a token outside of [first, stream_end).
  bool Adopt(const KeptState& state, int64_t first, int64_t until, int64_t stream_end);
  // Hide these spans while they are elsewhere in the frame: they were recalled.
  void Hide(std::vector<TokenSpan> spans) { hidden_ = std::move(spans); }

  // Return the stream's tokens in the zone, ascending. Shown leaves out the hidden ones.
  [[nodiscard]] std::vector<int64_t> Held() const;
  [[nodiscard]] std::vector<int64_t> Shown() const;
  [[nodiscard]] const KeptState& state() const { return state_; }

 private:
  // Return how many tokens of a block are in the zone.
  [[nodiscard]] int64_t SlotsOf(const KeptBlock& block) const;

  KeptConfig config_;
  KeptState state_;
  std::vector<TokenSpan> hidden_;
};

}  // namespace everlong::os
