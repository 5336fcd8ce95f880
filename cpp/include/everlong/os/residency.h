// Which tokens stand in the frame, in which zone and at which position (both designs, 2.1 "Anchor-Aware Eviction").
#pragma once

#include <cstdint>
#include <optional>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"

namespace everlong::os {

struct ResidencyConfig {
  int32_t frame_tokens = 4096;     // F: slots of the frame, and the largest frame position
  int32_t sink_tokens = 16;        // S (the designs: positions 0-4; measured better with 16)
  int32_t recalled_tokens = 1024;  // R: budget of the recalled zone
  int32_t rolling_tokens = 1024;   // M: rolling never shrinks below this by eviction
  int32_t evict_tokens = 256;      // rolling is cut back to M once it is over by this much
};

// kInvalidArgument unless all are positive (S, R may be 0) and S + R + M + evict_tokens < F.
Status Validate(const ResidencyConfig& config);

// The first S tokens of the stream are its sinks and stay at positions 0 .. S - 1; the others roll. A value; the caller
// keeps Append within Room(), Evict within rolling and SetRecalled within R (CHECKed).
class Residency {
 public:
  explicit Residency(const ResidencyConfig& config) : config_(config) {}

  // Free slots: F - S - R - rolling. The recalled zone counts as taken even before it is used.
  [[nodiscard]] int64_t Room() const;
  [[nodiscard]] int64_t NextPosition() const;
  void Append(int64_t tokens);
  // Tokens to drop now so that rolling holds M again; 0 while it is within M + evict_tokens.
  [[nodiscard]] int64_t Overflow() const;
  // Drops the oldest `tokens` of rolling; returns by how many positions the rest turns. The first eviction (0 tokens is
  // one too) moves rolling to S + R, which may be forwards, and ends the filling of the sinks.
  int64_t Evict(int64_t tokens);
  void SetRecalled(int64_t tokens);
  // A frame restored from the archive: sinks and the newest tokens of a stream of `stream_end`; returns rolling's span.
  // Of the stream [0, sinks_available) and [contiguous_from, stream_end) can be restored. Rolling begins at
  // `rolling_from`, or M before the end. Where that leaves nothing out, the frame is as if nothing had ever left it.
  TokenSpan Resume(int64_t stream_end, int64_t sinks_available, int64_t contiguous_from,
                   std::optional<int64_t> rolling_from = std::nullopt);

  [[nodiscard]] int64_t stream_end() const { return rolling_.end; }
  [[nodiscard]] TokenSpan rolling() const { return rolling_; }
  [[nodiscard]] int64_t sinks() const { return sinks_; }
  [[nodiscard]] int64_t recalled() const { return recalled_; }
  [[nodiscard]] bool evicted() const { return evicted_; }
  // Frame position of rolling's first token.
  [[nodiscard]] int64_t rolling_position() const;
  [[nodiscard]] const ResidencyConfig& config() const { return config_; }

 private:
  ResidencyConfig config_;
  int64_t sinks_ = 0;
  TokenSpan rolling_;  // of the stream; begins behind the sinks
  int64_t recalled_ = 0;
  bool evicted_ = false;  // whether anything has left the frame: rolling then starts at S + R
};

}  // namespace everlong::os
