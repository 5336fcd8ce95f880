// The zone of what came back. Its slots are right-aligned against rolling, so that a recall moves no resident key.
#pragma once

#include <numeric>

#include "everlong/os/zone.h"

namespace everlong::os {

class Recalled final : public Zone {
 public:
  explicit Recalled(int32_t budget) : budget_(budget) {}
  [[nodiscard]] std::unique_ptr<Zone> Copy() const override { return std::make_unique<Recalled>(*this); }
  [[nodiscard]] std::string_view name() const override { return "recalled"; }
  [[nodiscard]] int64_t budget() const override { return budget_; }
  [[nodiscard]] std::vector<int64_t> Slots() const override {
    std::vector<int64_t> slots(static_cast<size_t>(filled_));
    std::iota(slots.begin(), slots.end(), budget_ - filled_);
    return slots;
  }
  [[nodiscard]] int64_t RoomForOffers() const override { return budget_; }
  void Fill(int64_t slots) override {
    EVERLONG_CHECK(slots >= 0 && slots <= budget_);
    filled_ = slots;
  }
  void Restart(const Restorable& /*from*/) override { filled_ = 0; }

 private:
  int64_t budget_;
  int64_t filled_ = 0;
};

}  // namespace everlong::os
