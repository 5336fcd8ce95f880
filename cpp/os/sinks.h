// The zone of the stream's first tokens, which every model attends to (StreamingLLM, Xiao et al. 2023). They never
// leave.
#pragma once

#include <algorithm>
#include <numeric>

#include "everlong/os/zone.h"

namespace everlong::os {

class Sinks final : public Zone {
 public:
  explicit Sinks(int32_t budget) : budget_(budget) {}
  [[nodiscard]] std::unique_ptr<Zone> Copy() const override { return std::make_unique<Sinks>(*this); }
  [[nodiscard]] std::string_view name() const override { return "sinks"; }
  [[nodiscard]] int64_t budget() const override { return budget_; }
  [[nodiscard]] std::vector<int64_t> Slots() const override {
    std::vector<int64_t> slots(static_cast<size_t>(tokens_));
    std::iota(slots.begin(), slots.end(), 0);
    return slots;
  }
  int64_t Arrive(TokenSpan arriving, bool evicted) override {
    const int64_t taken = evicted ? 0 : std::min(arriving.size(), budget_ - tokens_);
    tokens_ += taken;
    return taken;
  }
  [[nodiscard]] int64_t FirstTokens() const override { return tokens_; }
  [[nodiscard]] std::vector<TokenSpan> Resident() const override { return {{0, tokens_}}; }
  void Restart(const Restorable& from) override { tokens_ = std::min({budget_, from.stream_end, from.first_tokens}); }

 private:
  int64_t budget_;
  int64_t tokens_ = 0;
};

}  // namespace everlong::os
