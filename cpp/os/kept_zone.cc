#include "kept_zone.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <set>
#include <string>

#include "at_least.h"
#include "everlong/base/check.h"

namespace everlong::os {
namespace {

bool Holds(std::span<const TokenSpan> spans, int64_t token) {
  return std::ranges::any_of(spans, [&](const TokenSpan& span) { return token >= span.begin && token < span.end; });
}

// Return whether the tokens are some of the block's, each once.
bool Possible(const KeptBlock& block, int64_t first) {
  const auto [least, most] = std::ranges::minmax(block.tokens);
  return least >= std::max(first, block.span.begin) && most < block.span.end &&
         std::set<int64_t>(block.tokens.begin(), block.tokens.end()).size() == block.tokens.size();
}

}  // namespace

Status Validate(const KeptConfig& config, int64_t block_tokens) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("kept_tokens", config.tokens, 0));
  EVERLONG_RETURN_IF_ERROR(AtLeast("kept_share", config.share, 1));
  EVERLONG_RETURN_IF_ERROR(AtLeast("kept_rungs", config.rungs, 1));
  if (config.rungs > kMostRungs) {
    return InvalidArgumentError("kept_rungs is " + std::to_string(config.rungs) + ", expected at most " +
                                std::to_string(kMostRungs));
  }
  const int64_t of_block = KeptZone(config).TokensOn(0, block_tokens);
  if (config.tokens == 0 || config.tokens >= of_block) return OkStatus();
  return InvalidArgumentError("kept_tokens is " + std::to_string(config.tokens) + ", expected 0 or at least " +
                              std::to_string(of_block) + ", one of kept_share tokens of a whole block");
}

int64_t KeptZone::TokensOn(int32_t rung, int64_t block_tokens) const {
  const int64_t share = int64_t{config_.share} << rung;
  return (block_tokens + share - 1) / share;
}

void KeptZone::Choose(TokenSpan block, std::span<const int64_t> tokens) {
  EVERLONG_CHECK(blocks_.empty() || blocks_.back().span.end <= block.begin);
  EVERLONG_CHECK(static_cast<int64_t>(tokens.size()) <= TokensOn(0, block.size()));
  EVERLONG_CHECK(std::set<int64_t>(tokens.begin(), tokens.end()).size() == tokens.size());
  for (const int64_t token : tokens) {
    EVERLONG_CHECK(token >= std::max(block.begin, until_) && token < block.end);
  }
  if (tokens.empty()) return;
  blocks_.push_back({block, 0, {tokens.begin(), tokens.end()}});
}

void KeptZone::Enter(int64_t until, std::span<const TokenSpan> elsewhere) {
  EVERLONG_CHECK(until >= until_);
  for (KeptBlock& block : blocks_) {
    std::erase_if(block.tokens,
                  [&](int64_t token) { return token >= until_ && token < until && Holds(elsewhere, token); });
  }
  std::erase_if(blocks_, [](const KeptBlock& block) { return block.tokens.empty(); });
  until_ = until;
}

std::vector<ZoneEvent> KeptZone::Settle(int64_t until, std::span<const TokenSpan> elsewhere) {
  if (config_.tokens == 0) return {};
  Enter(until, elsewhere);
  return TrimAgain();
}

std::vector<ZoneEvent> KeptZone::TrimAgain() {
  std::vector<int64_t> slots(static_cast<size_t>(config_.rungs));
  int64_t all = 0;
  for (const KeptBlock& block : blocks_) {
    slots[static_cast<size_t>(block.rung)] += SlotsOf(block);
    all += SlotsOf(block);
  }
  std::vector<ZoneEvent> events;
  while (all > config_.tokens) {
    int32_t rung = 0;  // one rung holds more than its share, because all together do
    while (slots[static_cast<size_t>(rung)] * config_.rungs <= config_.tokens) ++rung;
    const auto block = std::ranges::find_if(blocks_, [&](const KeptBlock& one) { return one.rung == rung; });
    const int64_t before = SlotsOf(*block);
    slots[static_cast<size_t>(rung)] -= before;
    all -= before;
    ++block->rung;
    const bool leaves = block->rung == config_.rungs;
    const size_t most = leaves ? 0 : static_cast<size_t>(TokensOn(block->rung, block->span.size()));
    if (most < block->tokens.size()) {
      block->tokens.resize(most);
      events.push_back(
          {leaves ? EventKind::kKeptDropped : EventKind::kTrimAgain, block->span, std::ssize(block->tokens)});
    }
    if (leaves) {
      blocks_.erase(block);
      continue;
    }
    slots[static_cast<size_t>(block->rung)] += SlotsOf(*block);
    all += SlotsOf(*block);
  }
  return events;
}

std::vector<ZoneEvent> KeptZone::Report() const {
  std::vector<ZoneEvent> events;
  for (const KeptBlock& block : blocks_) events.push_back({EventKind::kTrim, block.span, std::ssize(block.tokens)});
  return events;
}

void KeptZone::Restart(const Restorable& /*from*/) { *this = KeptZone(config_); }

ZoneRows KeptZone::Save() const {
  ZoneRows rows{{until_}};
  for (const auto& [span, rung, tokens] : blocks_) {
    rows.push_back({span.begin, span.end, rung});
    rows.back().insert(rows.back().end(), tokens.begin(), tokens.end());
  }
  return rows;
}

std::vector<TokenSpan> KeptZone::Named(const ZoneRows& rows) const {
  std::vector<TokenSpan> spans;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].size() > 3) spans.push_back({rows[i][0], rows[i][1]});
  }
  return spans;
}

bool KeptZone::Open(const ZoneRows& rows, const Around& around) {
  if (Named(rows).size() + 1 != rows.size() || rows[0].size() != 1 || rows[0][0] > around.rolling.begin) return false;
  std::vector<KeptBlock> blocks;
  int64_t previous = 0;
  for (const std::vector<int64_t>& row : rows | std::views::drop(1)) {
    if (row[2] < 0 || row[2] >= config_.rungs) return false;
    blocks.push_back({{row[0], row[1]}, static_cast<int32_t>(row[2]), {row.begin() + 3, row.end()}});
    const TokenSpan& span = blocks.back().span;
    if (span.begin < previous || span.empty() || span.end > around.rolling.end) return false;
    if (!Possible(blocks.back(), around.sinks)) return false;
    previous = span.end;
  }
  for (KeptBlock& block : blocks) {
    std::erase_if(block.tokens, [&](int64_t token) { return token >= rows[0][0] && token < around.rolling.begin; });
  }
  std::erase_if(blocks, [](const KeptBlock& block) { return block.tokens.empty(); });
  until_ = rows[0][0];
  blocks_ = config_.tokens > 0 ? std::move(blocks) : std::vector<KeptBlock>();
  hidden_.clear();
  Enter(around.rolling.begin, {});
  TrimAgain();
  return true;
}

std::vector<int64_t> KeptZone::Slots() const {
  std::vector<int64_t> slots(Shown().size());
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

int64_t KeptZone::Wants(int64_t block_tokens) const { return config_.tokens == 0 ? 0 : TokensOn(0, block_tokens); }

std::vector<int64_t> KeptZone::Held() const {
  std::vector<int64_t> tokens;
  for (const KeptBlock& block : blocks_) {
    for (const int64_t token : block.tokens) {
      if (token < until_) tokens.push_back(token);
    }
  }
  std::ranges::sort(tokens);
  return tokens;
}

std::vector<int64_t> KeptZone::Shown() const {
  std::vector<int64_t> tokens = Held();
  if (!hidden_.empty()) std::erase_if(tokens, [&](int64_t token) { return Holds(hidden_, token); });
  return tokens;
}

int64_t KeptZone::SlotsOf(const KeptBlock& block) const {
  return std::ranges::count_if(block.tokens, [&](int64_t token) { return token < until_; });
}

}  // namespace everlong::os
