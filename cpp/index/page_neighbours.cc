#include "page_neighbours.h"

#include <algorithm>

namespace everlong::index {

PageNeighbours::Pair PageNeighbours::Of(int32_t page) {
  if (page < block_.first || page >= block_.last) block_ = table_.BlockOfPage(page).pages();
  return {Allowed(page > block_.first ? page - 1 : table_.Previous(page)),
          Allowed(page + 1 < block_.last ? page + 1 : table_.Next(page))};
}

std::vector<Hit> SumsOverGroups(std::span<const Hit> pages, PageNeighbours& neighbours) {
  // The entry beside a page is nearly always its neighbour.
  const auto score_of = [pages](int32_t page, size_t near) {
    if (page < 0) return 0.0F;
    if (near < pages.size() && pages[near].page == page) return pages[near].score;
    const auto found = std::ranges::lower_bound(pages, page, {}, &Hit::page);
    return found != pages.end() && found->page == page ? found->score : 0.0F;
  };
  std::vector<Hit> sums;
  sums.reserve(pages.size());
  for (size_t at = 0; at < pages.size(); ++at) {
    const PageNeighbours::Pair beside = neighbours.Of(pages[at].page);
    // Below 0 there is none, because size_t wraps.
    sums.push_back(
        {pages[at].page, score_of(beside.previous, at - 1) + pages[at].score + score_of(beside.next, at + 1)});
  }
  return sums;
}

}  // namespace everlong::index
