// The tokens that are in the frame: its zones, and the rolling window behind them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/token_span.h"
#include "everlong/os/zone.h"
#include "everlong/os/zones.h"

namespace everlong::os {

// What was saved of zones, by name.
using SavedZones = std::map<std::string, ZoneRows, std::less<>>;

// New tokens roll, but for those that a zone takes as they come. A value type, thread-safe as one. The caller keeps
// Append within Room(), Evict within rolling and Fill within RoomForOffers() (CHECKed).
class Residency {
 public:
  explicit Residency(const ResidencyConfig& config) : Residency(config, MakeZones(config)) {}
  // Use these zones in place of those of the config.
  Residency(const ResidencyConfig& config, ZoneList zones);

  // Return the free slots: F less the zones' budgets and rolling. The zones count as taken even before they are used.
  [[nodiscard]] int64_t Room() const;
  [[nodiscard]] int64_t NextPosition() const { return rolling_position() + rolling_.size(); }
  void Append(int64_t tokens);
  // Return how many tokens to drop now so that rolling holds M again; 0 while it is within M + evict_tokens.
  [[nodiscard]] int64_t Overflow() const;
  // Drop the oldest `tokens` >= 1 of rolling. The first eviction moves rolling behind all zones, even forwards.
  Eviction Evict(int64_t tokens);
  // Begin a topic before token `position` of the stream, where a block ended.
  void BeginTopic(int64_t position);

  // Return how many of the best tokens of a closed block are wanted; and the runs of it, in order, that they may be
  // chosen from: those in rolling that no zone claims. The first zone that wants any gets them.
  [[nodiscard]] int64_t Wanted(TokenSpan block) const;
  [[nodiscard]] std::vector<TokenSpan> Choosable(TokenSpan block) const;
  void Choose(TokenSpan block, std::span<const int64_t> tokens);
  // Let chosen tokens that have left rolling enter their zone. Call it once all closed blocks have been chosen from.
  std::vector<ZoneEvent> Settle();

  // Return how many slots there are for what comes back; 0 while nothing has left the frame.
  [[nodiscard]] int64_t RoomForOffers() const;
  // So many of them are taken, and these spans of the stream came back whole.
  void Fill(int64_t slots, std::vector<TokenSpan> spans);
  [[nodiscard]] int64_t recalled() const { return recalled_; }

  // Restore a frame from the archive: the first tokens and the newest of a stream. Return rolling's span. Of the
  // stream, [0, first_tokens) and [contiguous_from, stream_end) can be restored. Rolling begins at `rolling_from`, or M
  // before the end. Where that leaves nothing out, the frame is as if nothing had ever left it. No topic begins at its
  // end.
  TokenSpan Resume(int64_t stream_end, int64_t first_tokens, int64_t contiguous_from,
                   std::optional<int64_t> rolling_from = std::nullopt);
  // After Resume: take over zones as another frame saved them (Zone::Open), those whose spans `has` says are archived.
  // Zones that hold copies are taken over together or not at all, because their host keeps the copies together.
  template <class Has>
  void Open(const SavedZones& saved, const Has& has);
  [[nodiscard]] SavedZones Save() const;

  [[nodiscard]] int64_t stream_end() const { return rolling_.end; }
  [[nodiscard]] TokenSpan rolling() const { return rolling_; }
  [[nodiscard]] int64_t sinks() const;  // how many of the stream's first tokens are in zones
  [[nodiscard]] bool evicted() const { return evicted_; }
  [[nodiscard]] int64_t rolling_position() const;            // frame position of rolling's first token
  [[nodiscard]] std::vector<int64_t> CopyPositions() const;  // frame positions of the slots that hold copies
  [[nodiscard]] const ZoneList& zones() const { return zones_; }
  // Return the zone of this name (CHECKed to be there), and the frame position of its first slot.
  [[nodiscard]] const Zone& zone(std::string_view name) const;
  [[nodiscard]] int64_t PositionOf(std::string_view name) const;
  // Return the runs of `span`, in order, whose tokens have left the frame: none of rolling, and none that a zone has as
  // Resident. Recalled tokens count as outside. So do those of a tombstone, which only stands for them. So do tokens
  // that a zone holds one by one, which hide while they are recalled, so that a page comes back whole.
  [[nodiscard]] std::vector<TokenSpan> Outside(TokenSpan span) const;
  [[nodiscard]] std::vector<int64_t> Held() const;        // of all zones, ascending
  [[nodiscard]] std::vector<TokenSpan> StandIns() const;  // of all zones, in the order of their slots
  [[nodiscard]] std::vector<ZoneEvent> Report() const;

 private:
  [[nodiscard]] std::vector<TokenSpan> Resident() const;
  [[nodiscard]] Around around() const { return {sinks(), rolling_, evicted_}; }

  int64_t frame_tokens_;
  int64_t rolling_tokens_;
  int64_t evict_tokens_;
  ZoneList zones_;
  TokenSpan rolling_;  // of the stream
  int64_t recalled_ = 0;
  bool evicted_ = false;  // whether anything has left the frame: rolling then starts behind all zones
};

template <class Has>
void Residency::Open(const SavedZones& saved, const Has& has) {
  const ZoneList anew = zones_;
  bool copies = true;
  for (size_t at = 0; at < zones_.size(); ++at) {
    const auto rows = saved.find(zones_[at].name());
    if (rows == saved.end() || (has(zones_[at].Named(rows->second)) && zones_[at].Open(rows->second, around())))
      continue;
    copies = copies && !zones_[at].HoldsCopies();
    zones_.Replace(at, anew[at].Copy());
  }
  for (size_t at = 0; at < zones_.size() && !copies; ++at) {
    if (zones_[at].HoldsCopies()) zones_.Replace(at, anew[at].Copy());
  }
}

}  // namespace everlong::os
