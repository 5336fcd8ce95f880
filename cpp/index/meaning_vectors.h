// The vectors of pages in int8, laid out for the scan of the part "meaning" (meaning_kernel.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "everlong/base/cache_lines.h"
#include "everlong/base/stable_vector.h"
#include "everlong/index/page_filter.h"
#include "meaning_kernel.h"

namespace everlong::index {

// One thread at a time changes it. Searches run beside Add, over pages that were there before they began. No search may
// run beside any other change of the pages that it covers. The vectors of a block are one buffer, which never moves.
class MeaningVectors {
 public:
  explicit MeaningVectors(int32_t dimension);

  // Return how many pages there are, with vectors or without.
  [[nodiscard]] int32_t pages() const { return pages_.size(); }
  // Make `page` the next page to come; those between have no vectors. Nothing happens when it is there.
  void SkipTo(int32_t page);
  // Add the pages of a block, behind all others: vectors [sum of counts, dimension], counts [pages], each at least 1.
  void Add(std::span<const int32_t> counts, std::span<const int8_t> vectors);
  // Do the same for a block with pages from `first_page`, which are here. It replaces what they have.
  void Put(int32_t first_page, std::span<const int32_t> counts, std::span<const int8_t> vectors);
  // Remove the vectors of the pages of one block.
  void Forget(PageRun pages);

  [[nodiscard]] bool Has(int32_t page) const { return page < pages() && pages_[page].tiles != nullptr; }
  // Return the vectors of a page that has some.
  [[nodiscard]] MeaningVectorRun Run(int32_t page) const {
    const Page& at = pages_[page];
    return {at.tiles, MeaningQuadsOf(dimension_), at.first, at.last};
  }
  // Return all tiles of the block with pages that begin there (meaning_layout.h); none without vectors.
  [[nodiscard]] std::span<const uint32_t> Tiles(int32_t first_page) const {
    const auto found = blocks_.find(first_page);
    return found == blocks_.end() ? std::span<const uint32_t>() : found->second;
  }
  [[nodiscard]] int32_t dimension() const { return dimension_; }
  [[nodiscard]] int64_t bytes() const;

 private:
  struct Page {
    const uint32_t* tiles = nullptr;  // of its block; none without vectors
    int32_t first = 0;                // its vectors among the block's
    int32_t last = 0;
  };
  using Buffer = CacheLineVector<uint32_t>;

  // Make tiles of vectors [n, dimension].
  [[nodiscard]] Buffer TilesOf(std::span<const int8_t> vectors) const;

  int32_t dimension_;
  StableVector<Page> pages_;
  std::unordered_map<int32_t, Buffer> blocks_;  // by first page
  int64_t block_bytes_ = 0;
};

}  // namespace everlong::index
