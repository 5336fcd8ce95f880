// The zone "kept" (os/kept_config.h says what it is for).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/os/kept_config.h"
#include "everlong/os/zone.h"

namespace everlong::os {

// The tokens that are left of one block.
struct KeptBlock {
  TokenSpan span;
  int32_t rung = 0;
  std::vector<int64_t> tokens;  // of the stream, best first: to trim again, cut the list
  bool operator==(const KeptBlock&) const = default;
};

// Calls must come in the order that zone.h describes (CHECKed).
class KeptZone final : public Zone {
 public:
  explicit KeptZone(const KeptConfig& config) : config_(config) {}
  [[nodiscard]] std::unique_ptr<Zone> Copy() const override { return std::make_unique<KeptZone>(*this); }
  [[nodiscard]] std::string_view name() const override { return "kept"; }
  [[nodiscard]] int64_t budget() const override { return config_.tokens; }
  // Without gaps from the first one, in order of time.
  [[nodiscard]] std::vector<int64_t> Slots() const override;

  // Return K, how many tokens of a block of this size stay on a rung. It is rounded up, so a short block keeps one.
  [[nodiscard]] int64_t TokensOn(int32_t rung, int64_t block_tokens) const;
  [[nodiscard]] int64_t Wants(int64_t block_tokens) const override;
  // Choose tokens of a block that was closed, behind all blocks before. Tokens come best first, each once, and none has
  // left rolling. No tokens: nothing of the block stays.
  void Choose(TokenSpan block, std::span<const int64_t> tokens) override;
  // Let chosen tokens before `until` enter, but those `elsewhere`, spans in order. Then trim again until all fits: each
  // time the oldest block of the first rung that holds more than its share of slots.
  std::vector<ZoneEvent> Settle(int64_t until, std::span<const TokenSpan> elsewhere) override;
  void Hide(std::vector<TokenSpan> spans) override { hidden_ = std::move(spans); }

  [[nodiscard]] std::vector<int64_t> Held() const override;
  [[nodiscard]] std::vector<int64_t> Shown() const override;
  [[nodiscard]] std::vector<ZoneEvent> Report() const override;

  void Restart(const Restorable& /*from*/) override;
  // The first row has `until`. The others have a block's begin, end and rung, then its tokens, best first.
  [[nodiscard]] ZoneRows Save() const override;
  [[nodiscard]] std::vector<TokenSpan> Named(const ZoneRows& rows) const override;
  // Tokens that were chosen, and were in that frame's rolling but are not in this one's, are lost.
  bool Open(const ZoneRows& rows, const Around& around) override;

 private:
  void Enter(int64_t until, std::span<const TokenSpan> elsewhere);
  std::vector<ZoneEvent> TrimAgain();
  // Return how many tokens of a block are in the zone.
  [[nodiscard]] int64_t SlotsOf(const KeptBlock& block) const;

  KeptConfig config_;
  int64_t until_ = 0;              // chosen tokens before it are in the zone, the others still in rolling
  std::vector<KeptBlock> blocks_;  // in order of time
  std::vector<TokenSpan> hidden_;
};

}  // namespace everlong::os
