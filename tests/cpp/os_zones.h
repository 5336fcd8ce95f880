// What the zones of a frame hold, as the tests name it; and offers of pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/os/memory_os.h"

namespace everlong::os {

struct Tombstone {
  TokenSpan span;
  int64_t tokens = 0;
  bool operator==(const Tombstone&) const = default;
};

// Tombstones and anchors: what the zones that hold copies save.
struct Copies {
  std::vector<Tombstone> tombstones;
  std::vector<TokenSpan> anchors;
  std::vector<int64_t> topics;
  [[nodiscard]] bool empty() const { return tombstones.empty() && anchors.empty(); }
  bool operator==(const Copies&) const = default;
};

inline Copies CopiesOf(const Residency& frame) {
  Copies copies;
  for (const auto& row : frame.zone("tombstones").Save()) copies.tombstones.push_back({{row[0], row[1]}, row[2]});
  const ZoneRows rows = frame.zone("anchors").Save();
  copies.topics = rows[0];
  for (size_t i = 1; i < rows.size(); ++i) copies.anchors.push_back({rows[i][0], rows[i][1]});
  return copies;
}

inline SavedZones Saved(const Copies& copies) {
  ZoneRows tombstones;
  for (const auto& [span, tokens] : copies.tombstones) tombstones.push_back({span.begin, span.end, tokens});
  ZoneRows anchors{copies.topics};
  for (const TokenSpan& span : copies.anchors) anchors.push_back({span.begin, span.end});
  return {{"tombstones", tombstones}, {"anchors", anchors}};
}

inline int64_t CopySlots(const ResidencyConfig& config) {
  return int64_t{config.anchor_tokens} * config.anchors + config.tombstones;
}

inline const Zone& KeptOf(const MemoryOs& os) { return os.frame().zone("kept"); }

// Without the row that says from where on tokens are in rolling still: it is of no use to a zone without slots.
inline ZoneRows KeptBlocksOf(const MemoryOs& os) {
  ZoneRows rows = KeptOf(os).Save();
  rows.erase(rows.begin());
  return rows;
}

inline std::vector<Offer> OffersOf(std::span<const PageRef> pages, OfferKind kind = OfferKind::kPage) {
  std::vector<Offer> offers;
  for (const PageRef& page : pages) offers.push_back({.kind = kind, .page = page});
  return offers;
}

inline std::vector<Placement> Recall(MemoryOs& os, std::span<const PageRef> pages,
                                     std::span<const PageRef> conversation = {}, std::span<const Offer> details = {}) {
  std::vector<Offer> offers = OffersOf(conversation, OfferKind::kConversation);
  offers.insert(offers.end(), details.begin(), details.end());
  for (const Offer& page : OffersOf(pages)) offers.push_back(page);
  return os.Recall(offers);
}

}  // namespace everlong::os
