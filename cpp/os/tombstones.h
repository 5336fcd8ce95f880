// The zone of tombstones: slots that each hold the mean K and V of tokens that left the frame.
#pragma once

#include "everlong/os/zone.h"

namespace everlong::os {

class Tombstones final : public Zone {
 public:
  explicit Tombstones(int32_t budget) : budget_(budget) {}
  [[nodiscard]] std::unique_ptr<Zone> Copy() const override { return std::make_unique<Tombstones>(*this); }
  [[nodiscard]] std::string_view name() const override { return "tombstones"; }
  [[nodiscard]] int64_t budget() const override { return budget_; }
  [[nodiscard]] std::vector<int64_t> Slots() const override;
  [[nodiscard]] bool HoldsCopies() const override { return true; }
  // The span gets a slot. If there are more spans than slots, the two neighbours that stand for the fewest tokens
  // become one; of equal pairs, the oldest.
  void Leave(TokenSpan leaving, std::span<const TokenSpan> /*others*/, Eviction& eviction) override;
  [[nodiscard]] std::vector<TokenSpan> StandIns() const override;
  [[nodiscard]] std::vector<ZoneEvent> Report() const override;
  void Restart(const Restorable& /*from*/) override { stones_.clear(); }
  // Rows: begin and end of a span of the stream, and how many tokens its slot stands for; oldest first.
  [[nodiscard]] ZoneRows Save() const override;
  [[nodiscard]] std::vector<TokenSpan> Named(const ZoneRows& rows) const override;
  bool Open(const ZoneRows& rows, const Around& around) override;

 private:
  struct Stone {
    TokenSpan span;
    int64_t tokens = 0;  // how many it stands for
  };

  int64_t budget_;
  std::vector<Stone> stones_;  // oldest first
};

}  // namespace everlong::os
