// The zone of anchors: the first tokens of each of the newest topics that left the frame.
#pragma once

#include "everlong/os/zone.h"

namespace everlong::os {

class Anchors final : public Zone {
 public:
  // The first `tokens` of each of `topics` topics.
  Anchors(int32_t tokens, int32_t topics) : tokens_(tokens), most_(topics) { BeginTopic(0); }
  [[nodiscard]] std::unique_ptr<Zone> Copy() const override { return std::make_unique<Anchors>(*this); }
  [[nodiscard]] std::string_view name() const override { return "anchors"; }
  [[nodiscard]] int64_t budget() const override { return tokens_ * most_; }
  [[nodiscard]] std::vector<int64_t> Slots() const override;
  [[nodiscard]] bool HoldsCopies() const override { return true; }
  void BeginTopic(int64_t position) override;
  // A topic's first tokens stay. If there are more topics than the zone takes, the oldest leaves it whole.
  void Leave(TokenSpan leaving, std::span<const TokenSpan> /*others*/, Eviction& eviction) override;
  [[nodiscard]] std::vector<TokenSpan> Resident() const override { return anchors_; }
  [[nodiscard]] std::vector<TokenSpan> Claims() const override;
  [[nodiscard]] std::vector<ZoneEvent> Report() const override;
  void Restart(const Restorable& /*from*/) override;
  // The first row has the first tokens of topics whose anchors are not all here yet. The others have begin and end of
  // an anchor, oldest first.
  [[nodiscard]] ZoneRows Save() const override;
  [[nodiscard]] std::vector<TokenSpan> Named(const ZoneRows& rows) const override;
  bool Open(const ZoneRows& rows, const Around& around) override;

 private:
  // Return the span that topic `at` claims, up to the next topic.
  [[nodiscard]] TokenSpan Claim(size_t at) const;

  int64_t tokens_;
  int64_t most_;
  std::vector<TokenSpan> anchors_;  // oldest first
  std::vector<int64_t> topics_;     // first tokens of topics whose anchors are not all here yet
};

}  // namespace everlong::os
