// The contract of a zone of the frame: its budget, what it takes, what it lets go and in which order, where its slots
// lie, and what is saved of it.
//
// The frame is a list of zones and the rolling window behind them (os/residency.h). New tokens enter at the window's
// end. What leaves the window passes the zones, and each keeps what it wants. The frame asks the zones in the order of
// their slots, and knows none by name. A new zone is a file that implements this contract, and a line in zones.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/token_span.h"
#include "everlong/os/event.h"

namespace everlong::os {

// What is saved of a zone: rows of whole numbers, which only the zone reads. It may come from disk.
using ZoneRows = std::vector<std::vector<int64_t>>;

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

// What became of tokens in a zone, for the trace.
struct ZoneEvent {
  EventKind what = EventKind::kAnchor;
  TokenSpan span;
  int64_t tokens = 0;
};

// What an eviction does.
struct Eviction {
  int64_t delta = 0;              // the positions by which the rest of rolling turns
  std::vector<Keep> keeps;        // to do in order, before the span leaves
  std::vector<ZoneEvent> events;  // what the zones say of it
};

// The frame around a zone, as it is now.
struct Around {
  int64_t sinks = 0;     // so many of the stream's first tokens never leave
  TokenSpan rolling;     // of the stream
  bool evicted = false;  // whether anything has left the frame
};

// What of a stream an archive can restore, for a frame that begins anew.
struct Restorable {
  int64_t stream_end = 0;
  int64_t first_tokens = 0;  // [0, first_tokens)
};

// A copyable value behind a pointer: a frame that is copied copies its zones (Copy). It is thread-safe as a value is.
class Zone {
 public:
  virtual ~Zone() = default;
  [[nodiscard]] virtual std::unique_ptr<Zone> Copy() const = 0;
  [[nodiscard]] virtual std::string_view name() const = 0;

  // --- slots
  // Return how many slots of the frame are the zone's, used or not.
  [[nodiscard]] virtual int64_t budget() const = 0;
  // Return the slots in use, counted from the zone's first one, ascending.
  [[nodiscard]] virtual std::vector<int64_t> Slots() const = 0;
  // Return whether the slots hold copies, which the host keeps apart and puts where the zone says after an eviction.
  [[nodiscard]] virtual bool HoldsCopies() const { return false; }

  // --- what it takes
  // Tokens come to the stream's end. Return how many of the first ones go here instead of into rolling.
  virtual int64_t Arrive(TokenSpan /*arriving*/, bool /*evicted*/) { return 0; }
  // A topic begins before this token, where a block ended.
  virtual void BeginTopic(int64_t /*position*/) {}
  // Tokens leave rolling. Add what of them stays here. The zone nearest to rolling is asked first. Other zones claimed
  // the spans in `others` (Claims), in order of time, and take them: no token is in the frame twice.
  virtual void Leave(TokenSpan /*leaving*/, std::span<const TokenSpan> /*others*/, Eviction& /*eviction*/) {}
  // Return how many of the best tokens of a block that was closed the zone wants; 0: none.
  [[nodiscard]] virtual int64_t Wants(int64_t /*block_tokens*/) const { return 0; }
  // These were chosen for it. They are still in rolling.
  virtual void Choose(TokenSpan /*block*/, std::span<const int64_t> /*tokens*/) { EVERLONG_CHECK(false); }
  // All that leaves has left, and all choices are made: rolling begins at `until`. Take chosen tokens before it, unless
  // they are `elsewhere` in the frame, and let go of what is too much then.
  virtual std::vector<ZoneEvent> Settle(int64_t /*until*/, std::span<const TokenSpan> /*elsewhere*/) { return {}; }

  // --- what comes back
  // Return how many slots are for what comes back.
  [[nodiscard]] virtual int64_t RoomForOffers() const { return 0; }
  // So many of these slots are taken now, in place of those before.
  virtual void Fill(int64_t /*slots*/) {}
  // These spans came back whole: hide tokens of them, so that none is in the frame twice.
  virtual void Hide(std::vector<TokenSpan> /*spans*/) {}

  // --- what is here, in order of time
  // Return how many of the stream's first tokens are here. They never leave.
  [[nodiscard]] virtual int64_t FirstTokens() const { return 0; }
  // Return the spans that no recall brings: they are here.
  [[nodiscard]] virtual std::vector<TokenSpan> Resident() const { return {}; }
  // Return the spans of rolling, or behind it, that will go here when they leave.
  [[nodiscard]] virtual std::vector<TokenSpan> Claims() const { return {}; }
  // Return tokens that are here one by one, and that give way to their page when it comes back whole. Shown leaves out
  // those that are hidden now; the slots are theirs.
  [[nodiscard]] virtual std::vector<int64_t> Held() const { return {}; }
  [[nodiscard]] virtual std::vector<int64_t> Shown() const { return {}; }
  // Return the spans that one slot each stands for, slot by slot. A policy may recall the span of a slot.
  [[nodiscard]] virtual std::vector<TokenSpan> StandIns() const { return {}; }
  // Return events that say all that is here.
  [[nodiscard]] virtual std::vector<ZoneEvent> Report() const { return {}; }

  // --- saved
  // Begin anew, on a stream that an archive has.
  virtual void Restart(const Restorable& from) = 0;
  [[nodiscard]] virtual ZoneRows Save() const { return {}; }
  // Return the spans of the stream that saved rows name. The archive must have them for Open.
  [[nodiscard]] virtual std::vector<TokenSpan> Named(const ZoneRows& /*rows*/) const { return {}; }
  // After Restart: take over what another frame saved. Return false, and take nothing, where no zone of this config can
  // be so in such a frame.
  virtual bool Open(const ZoneRows& rows, const Around& /*around*/) { return rows.empty(); }

 protected:
  Zone() = default;
  Zone(const Zone&) = default;
  Zone& operator=(const Zone&) = default;
};

// A list of zones that is a value, thread-safe as one.
class ZoneList {
 public:
  ZoneList() = default;
  ZoneList(const ZoneList& other) { *this = other; }
  ZoneList(ZoneList&&) noexcept = default;
  ZoneList& operator=(const ZoneList& other) {
    if (this == &other) return *this;
    zones_.clear();
    for (const auto& zone : other.zones_) zones_.push_back(zone->Copy());
    return *this;
  }
  ZoneList& operator=(ZoneList&&) noexcept = default;
  ~ZoneList() = default;

  void Add(std::unique_ptr<Zone> zone) { zones_.push_back(std::move(zone)); }
  [[nodiscard]] size_t size() const { return zones_.size(); }
  [[nodiscard]] auto begin() const { return zones_.begin(); }
  [[nodiscard]] auto end() const { return zones_.end(); }
  [[nodiscard]] Zone& operator[](size_t at) const { return *zones_[at]; }
  void Replace(size_t at, std::unique_ptr<Zone> zone) { zones_[at] = std::move(zone); }

 private:
  std::vector<std::unique_ptr<Zone>> zones_;
};

}  // namespace everlong::os
