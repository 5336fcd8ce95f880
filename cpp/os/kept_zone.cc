#include "everlong/os/kept_zone.h"

#include <algorithm>
#include <set>
#include <string>

#include "at_least.h"
#include "everlong/base/check.h"

namespace everlong::os {
namespace {

bool Holds(std::span<const TokenSpan> spans, int64_t token) {
  return std::ranges::any_of(spans, [&](const TokenSpan& span) { return token >= span.begin && token < span.end; });
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
  EVERLONG_CHECK(state_.blocks.empty() || state_.blocks.back().span.end <= block.begin);
  EVERLONG_CHECK(static_cast<int64_t>(tokens.size()) <= TokensOn(0, block.size()));
  EVERLONG_CHECK(std::set<int64_t>(tokens.begin(), tokens.end()).size() == tokens.size());
  for (const int64_t token : tokens) {
    EVERLONG_CHECK(token >= std::max(block.begin, state_.until) && token < block.end);
  }
  if (tokens.empty()) return;
  state_.blocks.push_back({block, 0, {tokens.begin(), tokens.end()}});
}

std::vector<TrimmedAgain> KeptZone::Enter(int64_t until, std::span<const TokenSpan> elsewhere) {
  EVERLONG_CHECK(until >= state_.until);
  for (KeptBlock& block : state_.blocks) {
    std::erase_if(block.tokens,
                  [&](int64_t token) { return token >= state_.until && token < until && Holds(elsewhere, token); });
  }
  std::erase_if(state_.blocks, [](const KeptBlock& block) { return block.tokens.empty(); });
  state_.until = until;

  std::vector<int64_t> slots(static_cast<size_t>(config_.rungs));
  int64_t all = 0;
  for (const KeptBlock& block : state_.blocks) {
    slots[static_cast<size_t>(block.rung)] += SlotsOf(block);
    all += SlotsOf(block);
  }
  std::vector<TrimmedAgain> trimmed;
  while (all > config_.tokens) {
    int32_t rung = 0;  // one rung holds more than its share, because all together do
    while (slots[static_cast<size_t>(rung)] * config_.rungs <= config_.tokens) ++rung;
    const auto block = std::ranges::find_if(state_.blocks, [&](const KeptBlock& one) { return one.rung == rung; });
    const int64_t before = SlotsOf(*block);
    slots[static_cast<size_t>(rung)] -= before;
    all -= before;
    ++block->rung;
    const bool leaves = block->rung == config_.rungs;
    const size_t most = leaves ? 0 : static_cast<size_t>(TokensOn(block->rung, block->span.size()));
    if (most < block->tokens.size()) {
      block->tokens.resize(most);
      trimmed.push_back({block->span, static_cast<int64_t>(most)});
    }
    if (leaves) {
      state_.blocks.erase(block);
      continue;
    }
    slots[static_cast<size_t>(block->rung)] += SlotsOf(*block);
    all += SlotsOf(*block);
  }
  return trimmed;
}

bool KeptZone::Adopt(const KeptState& state, int64_t first, int64_t until, int64_t stream_end) {
  if (state.until > until) return false;
  int64_t previous = 0;
  for (const KeptBlock& block : state.blocks) {
    if (block.span.begin < previous || block.span.empty() || block.span.end > stream_end) return false;
    if (block.rung < 0 || block.rung >= config_.rungs || block.tokens.empty()) return false;
    const auto [least, most] = std::ranges::minmax(block.tokens);
    if (least < std::max(first, block.span.begin) || most >= block.span.end) return false;
    if (std::set<int64_t>(block.tokens.begin(), block.tokens.end()).size() != block.tokens.size()) return false;
    previous = block.span.end;
  }
  KeptState adopted = state;
  const int64_t had = adopted.until;
  for (KeptBlock& block : adopted.blocks) {
    std::erase_if(block.tokens, [&](int64_t token) { return token >= had && token < until; });
  }
  std::erase_if(adopted.blocks, [](const KeptBlock& block) { return block.tokens.empty(); });
  state_ = std::move(adopted);
  hidden_.clear();
  if (config_.tokens == 0) state_.blocks.clear();
  Enter(until, {});
  return true;
}

std::vector<int64_t> KeptZone::Held() const {
  std::vector<int64_t> tokens;
  for (const KeptBlock& block : state_.blocks) {
    for (const int64_t token : block.tokens) {
      if (token < state_.until) tokens.push_back(token);
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
  return std::ranges::count_if(block.tokens, [&](int64_t token) { return token < state_.until; });
}

}  // namespace everlong::os
