#include "everlong/os/residency.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "at_least.h"

namespace everlong::os {
Status Validate(const ResidencyConfig& config) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("frame_tokens", config.frame_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("sink_tokens", config.sink_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("recalled_tokens", config.recalled_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("rolling_tokens", config.rolling_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("evict_tokens", config.evict_tokens, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("anchor_tokens", config.anchor_tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("anchors", config.anchors, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("tombstones", config.tombstones, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("kept_tokens", config.kept.tokens, 0));
  const int64_t zone = config.anchor_zone();
  const int64_t needed = config.sink_tokens + zone + config.kept.tokens + config.recalled_tokens +
                         config.rolling_tokens + config.evict_tokens;
  if (needed >= config.frame_tokens) {
    const char* zone_name = zone > 0 ? " + anchor_tokens * anchors + tombstones" : "";
    const char* kept_name = config.kept.tokens > 0 ? " + kept_tokens" : "";
    return InvalidArgumentError("sink_tokens" + std::string(zone_name) + kept_name +
                                " + recalled_tokens + rolling_tokens + evict_tokens is " + std::to_string(needed) +
                                ", expected less than frame_tokens, which is " + std::to_string(config.frame_tokens));
  }
  return OkStatus();
}

Residency::Residency(const ResidencyConfig& config) : config_(config), kept_(config.kept) { BeginTopic(0); }

int64_t Residency::Room() const {
  return config_.frame_tokens - config_.sink_tokens - config_.anchor_zone() - config_.kept.tokens -
         config_.recalled_tokens - rolling_.size();
}

int64_t Residency::NextPosition() const { return rolling_position() + rolling_.size(); }

void Residency::Append(int64_t tokens) {
  EVERLONG_CHECK(tokens >= 0 && tokens <= Room());
  const int64_t to_sinks = evicted_ ? 0 : std::min(tokens, config_.sink_tokens - sinks_);
  sinks_ += to_sinks;
  rolling_.begin += to_sinks;
  rolling_.end += tokens;
}

int64_t Residency::Overflow() const {
  const int64_t over = rolling_.size() - config_.rolling_tokens;
  return over >= config_.evict_tokens ? over : 0;
}

Eviction Residency::Evict(int64_t tokens) {
  EVERLONG_CHECK(tokens > 0 && tokens <= rolling_.size());
  const int64_t first_left = rolling_position() + tokens;
  const TokenSpan leaving{rolling_.begin, rolling_.begin + tokens};
  rolling_.begin += tokens;
  evicted_ = true;
  Eviction eviction{rolling_position() - first_left, {}};
  KeepAnchors(leaving, eviction.keeps);
  KeepTombstone(leaving, eviction.keeps);
  return eviction;
}

void Residency::BeginTopic(int64_t position) {
  if (config_.anchor_tokens == 0 || config_.anchors == 0) return;
  if (!zone_.topics.empty() && zone_.topics.back() == position) return;
  EVERLONG_CHECK(zone_.topics.empty() || zone_.topics.back() < position);
  zone_.topics.push_back(position);
}

void Residency::KeepAnchors(TokenSpan leaving, std::vector<Keep>& keeps) {
  size_t done = 0;
  for (size_t i = 0; i < zone_.topics.size(); ++i) {
    const int64_t topic = zone_.topics[i];
    TokenSpan anchor{topic, topic + config_.anchor_tokens};
    if (i + 1 < zone_.topics.size()) anchor.end = std::min(anchor.end, zone_.topics[i + 1]);
    if (anchor.end <= leaving.end) done = i + 1;
    const TokenSpan part = anchor.Intersect(leaving);
    if (part.empty()) continue;
    Keep keep{.span = part};
    if (part.begin > topic && !zone_.anchors.empty() && zone_.anchors.back().end == part.begin) {
      zone_.anchors.back().end = part.end;
    } else {
      if (zone_.anchors.size() == static_cast<size_t>(config_.anchors)) {
        keep.dropped = zone_.anchors.front();
        zone_.anchors.erase(zone_.anchors.begin());
      }
      zone_.anchors.push_back(part);
    }
    keeps.push_back(keep);
  }
  zone_.topics.erase(zone_.topics.begin(), zone_.topics.begin() + static_cast<ptrdiff_t>(done));
}

void Residency::KeepTombstone(TokenSpan leaving, std::vector<Keep>& keeps) {
  if (config_.tombstones == 0) return;
  std::vector<Tombstone>& stones = zone_.tombstones;
  stones.push_back({leaving, leaving.size()});
  Keep keep{.tombstone = true, .span = leaving};
  if (stones.size() > static_cast<size_t>(config_.tombstones)) {
    size_t first = 0;
    const auto pair_tokens = [&stones](size_t i) { return stones[i].tokens + stones[i + 1].tokens; };
    for (size_t i = 1; i + 1 < stones.size(); ++i) {
      if (pair_tokens(i) < pair_tokens(first)) first = i;
    }
    keep.merged = static_cast<int64_t>(first);
    keep.merged_tokens = stones[first].tokens;
    keep.next_tokens = stones[first + 1].tokens;
    keep.merged_span = {stones[first].span.begin, stones[first + 1].span.end};
    stones[first] = {keep.merged_span, pair_tokens(first)};
    stones.erase(stones.begin() + static_cast<ptrdiff_t>(first) + 1);
  }
  keeps.push_back(keep);
}

bool Residency::Adopt(const AnchorZone& zone) {
  if (zone.tombstones.size() > static_cast<size_t>(config_.tombstones)) return false;
  if (zone.anchors.size() > static_cast<size_t>(config_.anchors)) return false;
  if (!zone.empty() && !evicted_) return false;
  int64_t previous = sinks_;
  for (const Tombstone& stone : zone.tombstones) {
    if (stone.span.begin < previous || stone.span.end > rolling_.begin) return false;
    if (stone.tokens < 1 || stone.tokens > stone.span.size()) return false;
    previous = stone.span.end;
  }
  previous = sinks_;
  for (const TokenSpan& anchor : zone.anchors) {
    if (anchor.begin < previous || anchor.end > rolling_.begin) return false;
    if (anchor.empty() || anchor.size() > config_.anchor_tokens) return false;
    previous = anchor.end;
  }
  previous = -1;
  for (const int64_t topic : zone.topics) {
    if (topic <= previous || topic > rolling_.end) return false;
    previous = topic;
  }
  zone_ = zone;
  if (config_.anchor_tokens == 0 || config_.anchors == 0) zone_.topics.clear();
  return true;
}

std::vector<int64_t> Residency::AnchorPositions() const {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < zone_.tombstones.size(); ++i) {
    positions.push_back(config_.sink_tokens + static_cast<int64_t>(i));
  }
  int64_t next = int64_t{config_.sink_tokens} + config_.tombstones;
  for (const TokenSpan& anchor : zone_.anchors) {
    for (int64_t i = 0; i < anchor.size(); ++i) positions.push_back(next++);
  }
  return positions;
}

std::vector<TokenSpan> Residency::Choosable(TokenSpan block) const {
  std::vector<TokenSpan> runs;
  TokenSpan rest = block.Intersect(rolling_);
  for (size_t i = 0; i < zone_.topics.size(); ++i) {
    TokenSpan anchor{zone_.topics[i], zone_.topics[i] + config_.anchor_tokens};
    if (i + 1 < zone_.topics.size()) anchor.end = std::min(anchor.end, zone_.topics[i + 1]);
    anchor = rest.Intersect(anchor);
    if (anchor.empty()) continue;
    if (rest.begin < anchor.begin) runs.push_back({rest.begin, anchor.begin});
    rest.begin = anchor.end;
  }
  if (!rest.empty()) runs.push_back(rest);
  return runs;
}

void Residency::SetRecalled(int64_t tokens) {
  EVERLONG_CHECK(tokens >= 0 && tokens <= config_.recalled_tokens);
  EVERLONG_CHECK(evicted_ || tokens == 0);
  recalled_ = tokens;
}

TokenSpan Residency::Resume(int64_t stream_end, int64_t sinks_available, int64_t contiguous_from,
                            std::optional<int64_t> rolling_from) {
  const int64_t all_sinks = std::min<int64_t>(config_.sink_tokens, stream_end);
  sinks_ = std::min(all_sinks, sinks_available);
  // Between two calls a frame holds less than M + evict_tokens, so rolling was never longer.
  const int64_t most = int64_t{config_.rolling_tokens} + config_.evict_tokens - 1;
  const int64_t wanted = std::max(rolling_from.value_or(stream_end - config_.rolling_tokens), stream_end - most);
  rolling_.begin = std::min(std::max({sinks_, contiguous_from, wanted}), stream_end);
  rolling_.end = stream_end;
  EVERLONG_CHECK(sinks_ >= 0 && rolling_.begin <= rolling_.end);
  recalled_ = 0;
  evicted_ = sinks_ < all_sinks || rolling_.begin > sinks_;
  zone_ = {};
  kept_ = KeptZone(config_.kept);
  if (!evicted_) BeginTopic(0);
  return rolling_;
}

int64_t Residency::rolling_position() const {
  return evicted_ ? kept_position() + config_.kept.tokens + config_.recalled_tokens : sinks_;
}

std::vector<TokenSpan> Residency::Outside(TokenSpan span) const {
  std::vector<TokenSpan> runs;
  TokenSpan rest = span.Intersect({sinks_, rolling_.begin});
  for (const TokenSpan& anchor : zone_.anchors) {
    const TokenSpan resident = rest.Intersect(anchor);
    if (resident.empty()) continue;
    if (rest.begin < resident.begin) runs.push_back({rest.begin, resident.begin});
    rest.begin = resident.end;
  }
  if (!rest.empty()) runs.push_back(rest);
  return runs;
}

}  // namespace everlong::os
