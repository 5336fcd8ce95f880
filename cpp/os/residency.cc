#include "everlong/os/residency.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace everlong::os {
namespace {

// Return what of `rest` is in none of these spans, which are in order.
std::vector<TokenSpan> Without(TokenSpan rest, std::span<const TokenSpan> spans) {
  std::vector<TokenSpan> runs;
  for (const TokenSpan& span : spans) {
    const TokenSpan there = rest.Intersect(span);
    if (there.empty()) continue;
    if (rest.begin < there.begin) runs.push_back({rest.begin, there.begin});
    rest.begin = there.end;
  }
  if (!rest.empty()) runs.push_back(rest);
  return runs;
}

// Return what `of` says of each zone, one behind the other.
template <class Of>
auto FromAll(const ZoneList& zones, const Of& of) {
  decltype(((*zones.begin()).get()->*of)()) all;
  for (const auto& zone : zones) {
    auto some = (zone.get()->*of)();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

int64_t Budgets(const ZoneList& zones) {
  int64_t slots = 0;
  for (const auto& zone : zones) slots += zone->budget();
  return slots;
}

}  // namespace

Residency::Residency(const ResidencyConfig& config, ZoneList zones)
    : frame_tokens_(config.frame_tokens),
      rolling_tokens_(config.rolling_tokens),
      evict_tokens_(config.evict_tokens),
      zones_(std::move(zones)) {
  BeginTopic(0);
}

int64_t Residency::Room() const { return frame_tokens_ - Budgets(zones_) - rolling_.size(); }

void Residency::Append(int64_t tokens) {
  EVERLONG_CHECK(tokens >= 0 && tokens <= Room());
  TokenSpan arriving{rolling_.end, rolling_.end + tokens};
  for (const auto& zone : zones_) {
    const int64_t taken = zone->Arrive(arriving, evicted_);
    EVERLONG_CHECK(taken == 0 || rolling_.empty());  // no gap behind what rolls already
    arriving.begin += taken;
    rolling_.begin += taken;
  }
  rolling_.end = arriving.end;
}

int64_t Residency::Overflow() const {
  const int64_t over = rolling_.size() - rolling_tokens_;
  return over >= evict_tokens_ ? over : 0;
}

Eviction Residency::Evict(int64_t tokens) {
  EVERLONG_CHECK(tokens > 0 && tokens <= rolling_.size());
  const int64_t first_left = rolling_position() + tokens;
  const TokenSpan leaving{rolling_.begin, rolling_.begin + tokens};
  rolling_.begin += tokens;
  evicted_ = true;
  Eviction eviction{rolling_position() - first_left, {}, {}};
  std::vector<std::vector<TokenSpan>> claims;  // before any zone takes what it claims
  for (const auto& zone : zones_) claims.push_back(zone->Claims());
  for (size_t at = zones_.size(); at-- > 0;) {
    std::vector<TokenSpan> others;
    for (size_t other = 0; other < claims.size(); ++other) {
      if (other != at) others.insert(others.end(), claims[other].begin(), claims[other].end());
    }
    std::ranges::sort(others, {}, &TokenSpan::begin);
    zones_[at].Leave(leaving, others, eviction);
  }
  return eviction;
}

void Residency::BeginTopic(int64_t position) {
  for (const auto& zone : zones_) zone->BeginTopic(position);
}

int64_t Residency::Wanted(TokenSpan block) const {
  for (const auto& zone : zones_) {
    if (const int64_t tokens = zone->Wants(block.size()); tokens > 0) return tokens;
  }
  return 0;
}

std::vector<TokenSpan> Residency::Choosable(TokenSpan block) const {
  std::vector<TokenSpan> claims = FromAll(zones_, &Zone::Claims);
  std::ranges::sort(claims, {}, &TokenSpan::begin);
  return Without(block.Intersect(rolling_), claims);
}

void Residency::Choose(TokenSpan block, std::span<const int64_t> tokens) {
  const auto zone = std::ranges::find_if(zones_, [&](const auto& one) { return one->Wants(block.size()) > 0; });
  EVERLONG_CHECK(zone != zones_.end());
  (*zone)->Choose(block, tokens);
}

std::vector<ZoneEvent> Residency::Settle() {
  const std::vector<TokenSpan> elsewhere = Resident();
  std::vector<ZoneEvent> events;
  for (const auto& zone : zones_) {
    for (const ZoneEvent& event : zone->Settle(rolling_.begin, elsewhere)) events.push_back(event);
  }
  return events;
}

int64_t Residency::RoomForOffers() const {
  int64_t slots = 0;
  for (const auto& zone : zones_) slots += zone->RoomForOffers();
  return evicted_ ? slots : 0;
}

void Residency::Fill(int64_t slots, std::vector<TokenSpan> spans) {
  EVERLONG_CHECK(slots >= 0 && slots <= RoomForOffers());
  recalled_ = slots;
  for (const auto& zone : zones_) {
    if (zone->RoomForOffers() > 0) zone->Fill(slots);
    zone->Hide(spans);
  }
}

TokenSpan Residency::Resume(int64_t stream_end, int64_t first_tokens, int64_t contiguous_from,
                            std::optional<int64_t> rolling_from) {
  for (const auto& zone : zones_) zone->Restart({stream_end, first_tokens});
  // Between two calls a frame holds less than M + evict_tokens, so rolling was never longer.
  const int64_t most = rolling_tokens_ + evict_tokens_ - 1;
  const int64_t wanted = std::max(rolling_from.value_or(stream_end - rolling_tokens_), stream_end - most);
  rolling_.begin = std::min(std::max({sinks(), contiguous_from, wanted}), stream_end);
  rolling_.end = stream_end;
  EVERLONG_CHECK(sinks() >= 0 && rolling_.begin <= rolling_.end);
  recalled_ = 0;
  evicted_ = rolling_.begin > sinks();
  if (!evicted_) BeginTopic(0);
  return rolling_;
}

SavedZones Residency::Save() const {
  SavedZones saved;
  for (const auto& zone : zones_) {
    if (ZoneRows rows = zone->Save(); !rows.empty()) saved.emplace(zone->name(), std::move(rows));
  }
  return saved;
}

int64_t Residency::sinks() const {
  int64_t tokens = 0;
  for (const auto& zone : zones_) tokens += zone->FirstTokens();
  return tokens;
}

int64_t Residency::rolling_position() const { return evicted_ ? Budgets(zones_) : sinks(); }

std::vector<int64_t> Residency::CopyPositions() const {
  std::vector<int64_t> positions;
  int64_t first = 0;
  for (const auto& zone : zones_) {
    if (zone->HoldsCopies()) {
      for (const int64_t slot : zone->Slots()) positions.push_back(first + slot);
    }
    first += zone->budget();
  }
  return positions;
}

const Zone& Residency::zone(std::string_view name) const {
  const auto zone = std::ranges::find_if(zones_, [&](const auto& one) { return one->name() == name; });
  EVERLONG_CHECK(zone != zones_.end());
  return **zone;
}

int64_t Residency::PositionOf(std::string_view name) const {
  int64_t first = 0;
  for (const auto& zone : zones_) {
    if (zone->name() == name) return first;
    first += zone->budget();
  }
  EVERLONG_CHECK(false);
}

std::vector<TokenSpan> Residency::Resident() const {
  std::vector<TokenSpan> spans = FromAll(zones_, &Zone::Resident);
  std::ranges::sort(spans, {}, &TokenSpan::begin);
  return spans;
}

std::vector<TokenSpan> Residency::Outside(TokenSpan span) const {
  return Without(span.Intersect({0, rolling_.begin}), Resident());
}

std::vector<int64_t> Residency::Held() const {
  std::vector<int64_t> tokens = FromAll(zones_, &Zone::Held);
  std::ranges::sort(tokens);
  return tokens;
}

std::vector<TokenSpan> Residency::StandIns() const { return FromAll(zones_, &Zone::StandIns); }
std::vector<ZoneEvent> Residency::Report() const { return FromAll(zones_, &Zone::Report); }

}  // namespace everlong::os
