#include "anchors.h"

#include <algorithm>
#include <numeric>

namespace everlong::os {

std::vector<int64_t> Anchors::Slots() const {
  int64_t tokens = 0;
  for (const TokenSpan& anchor : anchors_) tokens += anchor.size();
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

void Anchors::BeginTopic(int64_t position) {
  if (budget() == 0 || (!topics_.empty() && topics_.back() == position)) return;
  EVERLONG_CHECK(topics_.empty() || topics_.back() < position);
  topics_.push_back(position);
}

TokenSpan Anchors::Claim(size_t at) const {
  TokenSpan claim{topics_[at], topics_[at] + tokens_};
  if (at + 1 < topics_.size()) claim.end = std::min(claim.end, topics_[at + 1]);
  return claim;
}

void Anchors::Leave(TokenSpan leaving, std::span<const TokenSpan> /*others*/, Eviction& eviction) {
  size_t done = 0;
  for (size_t i = 0; i < topics_.size(); ++i) {
    const TokenSpan claim = Claim(i);
    if (claim.end <= leaving.end) done = i + 1;
    const TokenSpan part = claim.Intersect(leaving);
    if (part.empty()) continue;
    Keep keep{.span = part};
    if (part.begin > claim.begin && !anchors_.empty() && anchors_.back().end == part.begin) {
      anchors_.back().end = part.end;
    } else {
      if (std::ssize(anchors_) == most_) {
        keep.dropped = anchors_.front();
        anchors_.erase(anchors_.begin());
        eviction.events.push_back({EventKind::kAnchorDropped, keep.dropped, keep.dropped.size()});
      }
      anchors_.push_back(part);
    }
    eviction.keeps.push_back(keep);
    eviction.events.push_back({EventKind::kAnchor, part, part.size()});
  }
  topics_.erase(topics_.begin(), topics_.begin() + static_cast<ptrdiff_t>(done));
}

std::vector<TokenSpan> Anchors::Claims() const {
  std::vector<TokenSpan> claims;
  for (size_t i = 0; i < topics_.size(); ++i) claims.push_back(Claim(i));
  return claims;
}

std::vector<ZoneEvent> Anchors::Report() const {
  std::vector<ZoneEvent> events;
  for (const TokenSpan& anchor : anchors_) events.push_back({EventKind::kAnchor, anchor, anchor.size()});
  return events;
}

void Anchors::Restart(const Restorable& /*from*/) {
  anchors_.clear();
  topics_.clear();
}

ZoneRows Anchors::Save() const {
  ZoneRows rows{topics_};
  for (const TokenSpan& anchor : anchors_) rows.push_back({anchor.begin, anchor.end});
  return rows;
}

std::vector<TokenSpan> Anchors::Named(const ZoneRows& rows) const {
  std::vector<TokenSpan> spans;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].size() == 2) spans.push_back({rows[i][0], rows[i][1]});
  }
  return spans;
}

bool Anchors::Open(const ZoneRows& rows, const Around& around) {
  const std::vector<TokenSpan> anchors = Named(rows);
  if (rows.empty() || anchors.size() + 1 != rows.size()) return false;
  if (std::ssize(anchors) > most_ || (!anchors.empty() && !around.evicted)) return false;
  int64_t previous = around.sinks;
  for (const TokenSpan& anchor : anchors) {
    if (anchor.begin < previous || anchor.end > around.rolling.begin) return false;
    if (anchor.empty() || anchor.size() > tokens_) return false;
    previous = anchor.end;
  }
  previous = -1;
  for (const int64_t topic : rows[0]) {
    if (topic <= previous || topic > around.rolling.end) return false;
    previous = topic;
  }
  anchors_ = anchors;
  topics_ = budget() > 0 ? rows[0] : std::vector<int64_t>();
  return true;
}

}  // namespace everlong::os
