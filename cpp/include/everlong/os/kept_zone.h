// The frame's zone "kept": chosen tokens of closed blocks (four-MI100 design, 3.2.3.3 "Physical", 3.2.5).
//
// At a block's end its best tokens are chosen; they stay in rolling with the others, and enter the zone when they leave
// that. As blocks age, a ladder trims them again: each rung keeps half of the one before. Every rung has an equal share
// of the slots, so that a zone of N slots spans about N * share * (2^rungs - 1) / rungs tokens of text:
// N = 3,456, one of 8 and 4 rungs: 103,680.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"

namespace everlong::os {

struct KeptConfig {
  int32_t tokens = 0;  // N: slots of the zone; 0: off
  int32_t share = 8;   // of so many tokens of a block that was just closed one is kept: 64 of 512
  int32_t rungs = 4;   // of the ladder: 64, 32, 16, 8 of 512
};

// kInvalidArgument unless tokens >= 0, share and rungs are positive, rungs <= kMostRungs, and the zone takes the first
// choice of a block of `block_tokens`.
Status Validate(const KeptConfig& config, int64_t block_tokens);

inline constexpr int32_t kMostRungs = 16;

// What is left of one block.
struct KeptBlock {
  TokenSpan span;
  int32_t rung = 0;
  std::vector<int64_t> tokens;  // of the stream, the best first: to trim again is to cut the list
  bool operator==(const KeptBlock&) const = default;
};

// All that the zone knows, for a checkpoint.
struct KeptState {
  int64_t until = 0;              // chosen tokens before it stand in the zone, the others in rolling still
  std::vector<KeptBlock> blocks;  // in order of time
  bool operator==(const KeptState&) const = default;
};

// A block that was trimmed again, to so many tokens; 0: it left the zone.
struct TrimmedAgain {
  TokenSpan span;
  int64_t tokens = 0;
};

// A value. Callers keep the order of calls that is said (CHECKed).
class KeptZone {
 public:
  explicit KeptZone(const KeptConfig& config) : config_(config) {}

  // K: of a block of so many tokens, how many stay on a rung. Rounded up: of a short block one stays.
  [[nodiscard]] int64_t TokensOn(int32_t rung, int64_t block_tokens) const;

  // A block was closed, behind all that were before: its chosen tokens, the best first, each once and at or behind
  // `until`. None: nothing of it stays.
  void Choose(TokenSpan block, std::span<const int64_t> tokens);
  // Chosen tokens before `until` have left rolling, and stand in the zone from now on; those among `elsewhere`, spans
  // in order, do not: they stay as something else. Then what is over is trimmed again: the oldest block of the first
  // rung that holds more than its share of slots, until all fits.
  std::vector<TrimmedAgain> Enter(int64_t until, std::span<const TokenSpan> elsewhere);
  // The zone as another frame left it, of which [.., until) has left rolling in this one; what was chosen of the tokens
  // between that frame's `until` and this one is lost. False, and nothing is adopted, for one that no zone of this
  // config could have, or of which a token lies outside of [first, stream_end).
  bool Adopt(const KeptState& state, int64_t first, int64_t until, int64_t stream_end);
  // These spans stand elsewhere in the frame for the time being: what was recalled.
  void Hide(std::vector<TokenSpan> spans) { hidden_ = std::move(spans); }

  // Tokens of the stream that the zone holds, ascending; Shown: without those that are hidden.
  [[nodiscard]] std::vector<int64_t> Held() const;
  [[nodiscard]] std::vector<int64_t> Shown() const;
  [[nodiscard]] const KeptState& state() const { return state_; }

 private:
  // Of a block's tokens those that stand in the zone.
  [[nodiscard]] int64_t SlotsOf(const KeptBlock& block) const;

  KeptConfig config_;
  KeptState state_;
  std::vector<TokenSpan> hidden_;
};

}  // namespace everlong::os
