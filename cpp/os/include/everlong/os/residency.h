// The tokens that are in the frame, with their zone and position.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/os/kept_zone.h"

namespace everlong::os {

struct ResidencyConfig {
  int32_t frame_tokens = 4096;     // F: slots of the frame, and the largest frame position
  int32_t sink_tokens = 16;        // S; 16 measured better than 5
  int32_t recalled_tokens = 1024;  // R: budget of the recalled zone
  int32_t rolling_tokens = 1024;   // M: eviction never makes rolling shorter than this
  int32_t evict_tokens = 256;      // rolling is cut back to M once it is over by this much
  // The zone behind the sinks, off by default. It holds the first K tokens of each of the newest topics that left the
  // frame, and tombstones, each the mean K and V of what left.
  int32_t anchor_tokens = 0;  // K
  int32_t anchors = 8;        // topics
  int32_t tombstones = 0;
  KeptConfig kept = {};  // behind the anchor zone, off by default; N slots

  // Return A, the slots of the anchor zone: K * anchors + tombstones.
  [[nodiscard]] int64_t anchor_zone() const { return int64_t{anchor_tokens} * anchors + tombstones; }
};

// kInvalidArgument unless all are positive (S, R, K, N, anchors and tombstones may be 0) and S + A + N + R + M +
// evict_tokens < F.
Status Validate(const ResidencyConfig& config);

// One slot for tokens that left the frame: their mean.
struct Tombstone {
  TokenSpan span;      // of the stream, from the first token to behind the last
  int64_t tokens = 0;  // how many it stands for
  bool operator==(const Tombstone&) const = default;
};

// The slots behind the sinks, oldest first: one for each tombstone, then one for each token of the anchors.
struct AnchorZone {
  std::vector<Tombstone> tombstones;
  std::vector<TokenSpan> anchors;
  std::vector<int64_t> topics;  // first tokens of topics whose anchors are not all in the zone yet
  [[nodiscard]] bool empty() const { return tombstones.empty() && anchors.empty(); }
  bool operator==(const AnchorZone&) const = default;
};

// What stays of a span that leaves rolling.
struct Keep {
  bool tombstone = false;
  TokenSpan span;
  // For an anchor: drop the oldest one, of these tokens (empty: none). Then each token of `span` gets a slot at the
  // end.
  TokenSpan dropped = {};
  // For a tombstone: the mean of `span` gets a slot at the end. Then, where `merged` is not -1, this slot and the next
  // become their mean, weighted by the tokens that each stands for. It stands for `merged_span`.
  int64_t merged = -1;
  TokenSpan merged_span = {};
  int64_t merged_tokens = 0;
  int64_t next_tokens = 0;
};

struct Eviction {
  int64_t delta = 0;        // the positions by which the rest of rolling turns
  std::vector<Keep> keeps;  // to do in order, before the span leaves
};

// The first S tokens of the stream are its sinks and stay at positions 0 .. S - 1. The others roll. A value type. The
// caller keeps Append within Room(), Evict within rolling and SetRecalled within R (CHECKed).
class Residency {
 public:
  explicit Residency(const ResidencyConfig& config);

  // Return the free slots: F - S - A - N - R - rolling. The zones count as taken even before they are used.
  [[nodiscard]] int64_t Room() const;
  [[nodiscard]] int64_t NextPosition() const;
  void Append(int64_t tokens);
  // Return how many tokens to drop now so that rolling holds M again; 0 while it is within M + evict_tokens.
  [[nodiscard]] int64_t Overflow() const;
  // Drop the oldest `tokens` >= 1 of rolling. The first eviction moves rolling to S + A + N + R, even forwards.
  Eviction Evict(int64_t tokens);
  // Begin a topic before token `position` of the stream, where a block ended. Its first K tokens are kept when they
  // leave rolling. If there are more topics than `anchors`, the oldest leaves the zone whole. If there are more spans
  // than `tombstones`, the two neighbours that stand for the fewest tokens become one; of equal pairs, the oldest.
  void BeginTopic(int64_t position);
  // After Resume: take over the zone as an earlier frame left it. Return false, and adopt nothing, when it does not fit
  // this config or names tokens that are in rolling.
  bool Adopt(const AnchorZone& zone);
  void SetRecalled(int64_t tokens);
  // Return a closed block's tokens that may be chosen for "kept", in order: those in rolling that will not be anchors.
  [[nodiscard]] std::vector<TokenSpan> Choosable(TokenSpan block) const;
  // Choose the block's best tokens. All of them must be choosable.
  void Choose(TokenSpan block, std::span<const int64_t> tokens) { kept_.Choose(block, tokens); }
  // Let chosen tokens that have left rolling enter the zone. Call it once all closed blocks have been chosen from.
  std::vector<TrimmedAgain> EnterKept() { return kept_.Enter(rolling_.begin, zone_.anchors); }
  // After Resume: KeptZone::Adopt.
  bool AdoptKept(const KeptState& state) { return kept_.Adopt(state, sinks_, rolling_.begin, rolling_.end); }
  void HideKept(std::vector<TokenSpan> spans) { kept_.Hide(std::move(spans)); }
  // Restore a frame from the archive: sinks and the newest tokens of a stream of `stream_end`. Return rolling's span.
  // Of the stream, [0, sinks_available) and [contiguous_from, stream_end) can be restored. Rolling begins at
  // `rolling_from`, or M before the end. Where that leaves nothing out, the frame is as if nothing had ever left it. No
  // topic begins at its end.
  TokenSpan Resume(int64_t stream_end, int64_t sinks_available, int64_t contiguous_from,
                   std::optional<int64_t> rolling_from = std::nullopt);

  [[nodiscard]] int64_t stream_end() const { return rolling_.end; }
  [[nodiscard]] TokenSpan rolling() const { return rolling_; }
  [[nodiscard]] int64_t sinks() const { return sinks_; }
  [[nodiscard]] int64_t recalled() const { return recalled_; }
  [[nodiscard]] const AnchorZone& anchor_zone() const { return zone_; }
  // Return the frame positions of its slots: tombstones from S, anchors from S + tombstones.
  [[nodiscard]] std::vector<int64_t> AnchorPositions() const;
  [[nodiscard]] const KeptZone& kept() const { return kept_; }
  // Return the frame position of the first token that it shows, S + A. The others follow.
  [[nodiscard]] int64_t kept_position() const { return config_.sink_tokens + config_.anchor_zone(); }
  [[nodiscard]] bool evicted() const { return evicted_; }
  // Return the frame position of rolling's first token.
  [[nodiscard]] int64_t rolling_position() const;
  // Return the runs of `span`, in order, whose tokens have left the frame: no sinks, no anchors, none of rolling.
  // Recalled tokens count as outside. So do those of a tombstone, which only stands for them. So do kept tokens, which
  // hide while they are recalled, so that a page comes back whole.
  [[nodiscard]] std::vector<TokenSpan> Outside(TokenSpan span) const;

 private:
  void KeepAnchors(TokenSpan leaving, std::vector<Keep>& keeps);
  void KeepTombstone(TokenSpan leaving, std::vector<Keep>& keeps);

  ResidencyConfig config_;
  int64_t sinks_ = 0;
  TokenSpan rolling_;  // of the stream; begins behind the sinks
  int64_t recalled_ = 0;
  bool evicted_ = false;  // whether anything has left the frame: rolling then starts at S + A + N + R
  AnchorZone zone_;
  KeptZone kept_;
};

}  // namespace everlong::os
