// A page with its neighbours, as a recall brings it back, for Granularity::kGroup.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/index/block_table.h"
#include "everlong/index/page_filter.h"

namespace everlong::index {

// The pages beside one (BlockTable::Previous and Next) that a filter allows. For one thread; refers to both.
class PageNeighbours {
 public:
  PageNeighbours(const BlockTable& table, const PageFilter& filter) : table_(table), filter_(filter) {}

  // -1 where there is none.
  struct Pair {
    int32_t previous = -1;
    int32_t next = -1;
  };
  // Return the pages beside one. It is quick for pages of a block one after the other.
  [[nodiscard]] Pair Of(int32_t page);

 private:
  [[nodiscard]] int32_t Allowed(int32_t page) const { return page >= 0 && filter_.Allows(page) ? page : -1; }

  const BlockTable& table_;
  const PageFilter& filter_;
  PageRun block_;  // of the page of the last call
};

// Given pages with scores, ascending, return at each the sum of its score and those of its neighbours among them.
std::vector<Hit> SumsOverGroups(std::span<const Hit> pages, PageNeighbours& neighbours);

}  // namespace everlong::index
