#include "tombstones.h"

#include <numeric>

namespace everlong::os {

std::vector<int64_t> Tombstones::Slots() const {
  std::vector<int64_t> slots(stones_.size());
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

void Tombstones::Leave(TokenSpan leaving, std::span<const TokenSpan> /*others*/, Eviction& eviction) {
  if (budget_ == 0) return;
  stones_.push_back({leaving, leaving.size()});
  Keep keep{.tombstone = true, .span = leaving};
  eviction.events.push_back({EventKind::kTombstone, leaving, leaving.size()});
  if (std::ssize(stones_) > budget_) {
    size_t first = 0;
    const auto pair_tokens = [this](size_t i) { return stones_[i].tokens + stones_[i + 1].tokens; };
    for (size_t i = 1; i + 1 < stones_.size(); ++i) {
      if (pair_tokens(i) < pair_tokens(first)) first = i;
    }
    keep.merged = static_cast<int64_t>(first);
    keep.merged_tokens = stones_[first].tokens;
    keep.next_tokens = stones_[first + 1].tokens;
    keep.merged_span = {stones_[first].span.begin, stones_[first + 1].span.end};
    stones_[first] = {keep.merged_span, pair_tokens(first)};
    stones_.erase(stones_.begin() + keep.merged + 1);
    eviction.events.push_back({EventKind::kTombstonesMerged, keep.merged_span, keep.merged_tokens + keep.next_tokens});
  }
  eviction.keeps.push_back(keep);
}

std::vector<TokenSpan> Tombstones::StandIns() const {
  std::vector<TokenSpan> spans;
  for (const Stone& stone : stones_) spans.push_back(stone.span);
  return spans;
}

std::vector<ZoneEvent> Tombstones::Report() const {
  std::vector<ZoneEvent> events;
  for (const auto& [span, tokens] : stones_) events.push_back({EventKind::kTombstone, span, tokens});
  return events;
}

ZoneRows Tombstones::Save() const {
  ZoneRows rows;
  for (const auto& [span, tokens] : stones_) rows.push_back({span.begin, span.end, tokens});
  return rows;
}

std::vector<TokenSpan> Tombstones::Named(const ZoneRows& rows) const {
  std::vector<TokenSpan> spans;
  for (const std::vector<int64_t>& row : rows) {
    if (row.size() == 3) spans.push_back({row[0], row[1]});
  }
  return spans;
}

bool Tombstones::Open(const ZoneRows& rows, const Around& around) {
  if (std::ssize(rows) > budget_ || (!rows.empty() && !around.evicted)) return false;
  std::vector<Stone> stones;
  int64_t previous = around.sinks;
  for (const std::vector<int64_t>& row : rows) {
    if (row.size() != 3 || row[0] < previous || row[1] > around.rolling.begin) return false;
    const Stone stone{{row[0], row[1]}, row[2]};
    if (stone.tokens < 1 || stone.tokens > stone.span.size()) return false;
    stones.push_back(stone);
    previous = stone.span.end;
  }
  stones_ = std::move(stones);
  return true;
}

}  // namespace everlong::os
