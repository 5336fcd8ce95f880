#include "everlong/os/offer.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

#include "everlong/base/check.h"

namespace everlong::os {
namespace {

using PageId = std::pair<int64_t, int32_t>;  // block, page

int64_t BlockOf(const Offer* offer) { return offer->page.block; }
PageId IdOf(const Offer& offer) { return {offer.page.block, offer.page.page}; }

// Fills the zone from its end, next to rolling, backwards.
class Placer {
 public:
  Placer(const Residency& frame, int64_t stream)
      : frame_(frame), stream_(stream), zone_(frame.RoomForOffers()), position_(frame.rolling_position()) {}

  Placed Place(std::span<const Offer> offers, int64_t conversation_tokens) {
    std::vector<const Offer*> pages;
    std::vector<const Offer*> details;
    std::vector<const Offer*> conversation;
    for (const Offer& offer : offers) {
      if (offer.kind == OfferKind::kConversation) {
        conversation.push_back(&offer);
      } else if (offer.kind != OfferKind::kDetails) {
        pages.push_back(&offer);
      } else if (MayCome(offer) && std::ranges::find(details, offer.page.block, BlockOf) == details.end()) {
        details.push_back(&offer);
      }
    }
    for (auto* const kind : {&pages, &details, &conversation}) std::ranges::reverse(*kind);
    const int64_t for_conversation = ReserveConversation(conversation, conversation_tokens);
    free_ = zone_ - for_conversation;
    const int64_t for_details = ReserveDetails(details, pages.empty() ? free_ : free_ / 2);
    free_ -= for_details;
    PlacePages(pages);
    free_ += for_details;
    PlaceDetails(details);
    placed_.found = !placed_.placements.empty();
    free_ += for_conversation;
    PlaceConversation(conversation);
    std::ranges::reverse(placed_.placements);
    std::ranges::reverse(placed_.restored);
    placed_.slots = frame_.rolling_position() - position_;
    return std::move(placed_);
  }

 private:
  // Return the runs of a page that may come, in order: not resident, and no sinks of their stream, whichever that is.
  [[nodiscard]] std::vector<TokenSpan> RunsOf(const Offer& offer) const {
    const PageRef& page = offer.page;
    const TokenSpan no_sinks = page.span.Intersect({page.span.begin + page.sink_tokens, page.span.end});
    std::vector<TokenSpan> runs = page.stream == stream_ ? frame_.Outside(no_sinks) : std::vector{no_sinks};
    std::erase_if(runs, [](const TokenSpan& run) { return run.empty(); });
    return offer.kind == OfferKind::kChosen ? ChosenOf(runs, offer) : runs;
  }

  [[nodiscard]] std::vector<TokenSpan> ChosenOf(std::span<const TokenSpan> runs, const Offer& offer) const {
    const std::vector<int64_t> held = offer.page.stream == stream_ ? frame_.Held() : std::vector<int64_t>{};
    std::vector<TokenSpan> chosen;
    for (const TokenSpan& run : runs) {
      auto at = std::ranges::lower_bound(offer.tokens, run.begin);
      for (; at != offer.tokens.end() && *at < run.end; ++at) {
        if (std::ranges::binary_search(held, *at)) continue;
        if (!chosen.empty() && chosen.back().end == *at) {
          ++chosen.back().end;
        } else {
          chosen.push_back({*at, *at + 1});
        }
      }
    }
    return chosen;
  }

  [[nodiscard]] int64_t TokensOf(const Offer& offer) const {
    int64_t tokens = 0;
    for (const TokenSpan& run : RunsOf(offer)) tokens += run.size();
    return tokens;
  }

  // Return whether Detail Tokens may come: of their block something has left the frame.
  [[nodiscard]] bool MayCome(const Offer& details) const {
    EVERLONG_CHECK(details.slots > 0);
    return frame_.evicted() && (details.page.stream != stream_ || !frame_.Outside(details.page.span).empty());
  }

  // Choose the newest pages of the conversation that come in any case. Return their tokens.
  int64_t ReserveConversation(std::span<const Offer* const> newest_first, int64_t most) {
    int64_t reserved = 0;
    for (const Offer* const offer : newest_first) {
      const int64_t tokens = TokensOf(*offer);
      if (reserved + tokens > std::min(most, zone_ / 2)) break;
      reserved += tokens;
      of_conversation_.insert(IdOf(*offer));
    }
    return reserved;
  }

  static int64_t ReserveDetails(std::span<const Offer* const> last_first, int64_t most) {
    int64_t reserved = 0;
    for (const Offer* const offer : last_first) {
      if (reserved + offer->slots > most) break;
      reserved += offer->slots;
    }
    return reserved;
  }

  void PlacePages(std::span<const Offer* const> last_first) {
    std::set<PageId> named;
    for (const Offer* const offer : last_first) {
      if (of_conversation_.contains(IdOf(*offer)) || !named.insert(IdOf(*offer)).second) continue;
      for (TokenSpan run : RunsOf(*offer) | std::views::reverse) {
        placed_.left_out += std::max<int64_t>(run.size() - free_, 0);
        run.begin = std::max(run.begin, run.end - free_);
        if (!run.empty()) PlaceRun(*offer, run);
      }
    }
  }

  void PlaceDetails(std::span<const Offer* const> last_first) {
    bool full = false;
    for (const Offer* const offer : last_first) {
      full = full || offer->slots > free_;
      if (full) {
        placed_.left_out += offer->slots;
        continue;
      }
      const PageRef& block = offer->page;
      free_ -= offer->slots;
      position_ -= offer->slots;
      placed_.placements.push_back(
          {{block.block, 0, block.stream, block.span}, 0, offer->slots, position_, /*details=*/true});
      placed_.restored.push_back({block.block, block.stream, block.span, offer->slots, offer->by, offer->sure});
    }
  }

  void PlaceConversation(std::span<const Offer* const> newest_first) {
    for (const Offer* const offer : newest_first) {
      const bool comes = of_conversation_.contains(IdOf(*offer)) || (!placed_.found && TokensOf(*offer) <= free_);
      if (!comes) break;
      for (const TokenSpan& run : RunsOf(*offer) | std::views::reverse) PlaceRun(*offer, run);
    }
  }

  void PlaceRun(const Offer& offer, TokenSpan run) {
    const PageRef& page = offer.page;
    free_ -= run.size();
    position_ -= run.size();
    placed_.placements.push_back(
        {page, static_cast<int32_t>(run.begin - page.span.begin), static_cast<int32_t>(run.size()), position_});
    std::vector<RestoredRun>& restored = placed_.restored;
    const bool goes_on = !restored.empty() && restored.back().block == page.block &&
                         restored.back().detail_slots == 0 && restored.back().span.begin == run.end;
    if (goes_on) {
      restored.back().span.begin = run.begin;
    } else {
      restored.push_back({page.block, page.stream, run, 0, offer.by, offer.sure});
    }
  }

  const Residency& frame_;
  int64_t stream_;
  int64_t zone_;
  int64_t position_;  // of the frame: what was placed last begins here
  int64_t free_ = 0;  // slots for the kind that is placed now
  std::set<PageId> of_conversation_;
  Placed placed_;
};

}  // namespace

Placed PlaceOffers(std::span<const Offer> offers, const Residency& frame, int64_t stream, int64_t conversation_tokens) {
  return Placer(frame, stream).Place(offers, conversation_tokens);
}

}  // namespace everlong::os
