// The vectors of pages in int8, laid out for the scan of the part "meaning" (meaning_kernel.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/cache_lines.h"
#include "everlong/base/mapped_reads.h"
#include "everlong/base/stable_vector.h"
#include "everlong/index/page_filter.h"
#include "meaning_kernel.h"
#include "sign_kernel.h"

namespace everlong::index {

// One thread at a time changes it. Searches run beside a Put of pages that no search covers yet. No search may run
// beside any other change of the pages that it covers. The vectors of a block are one array of tiles, and one of their
// signs (sign_kernel.h). These never move: they are of this process, or mapped from a file.
class MeaningVectors {
 public:
  explicit MeaningVectors(int32_t dimension);

  // Return how many pages there are, with vectors or without.
  [[nodiscard]] int32_t pages() const { return pages_.size(); }
  // Make `page` the next page to come, unless it is there; those between have no vectors.
  void SkipTo(int32_t page);
  // Give the pages of a block, from `first_page` on, these vectors in place of what they have: [sum of counts,
  // dimension], counts [pages], each at least 1.
  void Put(int32_t first_page, std::span<const int32_t> counts, std::span<const int8_t> vectors);
  // The same with Tiles() and Signs() of such a block of another MeaningVectors of this dimension: TileWords and
  // SignWords(sum of counts) words, each at the beginning of a cache line. They are mapped from a file, and there as
  // long as this object. They may be any: the scan heeds what no vector has (meaning_scan.h).
  void PutMapped(int32_t first_page, std::span<const int32_t> counts, std::span<const uint32_t> tiles,
                 std::span<const uint32_t> signs);
  // Remove the vectors of the pages of one block. Those of this process become zeros first; those that are mapped stay
  // in their file.
  void Forget(PageRun pages);

  [[nodiscard]] bool Has(int32_t page) const { return page < pages() && pages_[page].tiles != nullptr; }
  // Return the vectors of a page that has some.
  [[nodiscard]] MeaningVectorRun Run(int32_t page) const {
    const Page& at = pages_[page];
    return {at.tiles, MeaningQuadsOf(dimension_), at.first, at.last};
  }
  // Have the vectors of a page that has some read soon, if they are mapped.
  void ReadSoon(int32_t page, SoonReads& reads) const {
    const Page& at = pages_[page];
    if (!at.mapped) return;
    const auto tile_words = static_cast<size_t>(MeaningTileWords(MeaningQuadsOf(dimension_)));
    const auto first = static_cast<size_t>(at.first / kTileVectors) * tile_words;
    const auto last = static_cast<size_t>((at.last + kTileVectors - 1) / kTileVectors) * tile_words;
    reads.Add({at.tiles + first, last - first});
  }
  // Return the signs of a page's vectors; no tiles if it has none.
  [[nodiscard]] SignRun Signs(int32_t page) const {
    if (page >= pages()) return {};
    const Page& at = pages_[page];
    return {at.signs, SignWordsOf(MeaningQuadsOf(dimension_)), at.first, at.last};
  }
  // Return all tiles of the block with pages that begin there (meaning_layout.h); none without vectors.
  [[nodiscard]] std::span<const uint32_t> Tiles(int32_t first_page) const {
    const auto found = blocks_.find(first_page);
    return found == blocks_.end() ? std::span<const uint32_t>() : found->second.tiles;
  }
  [[nodiscard]] std::span<const uint32_t> SignTiles(int32_t first_page) const {
    const auto found = blocks_.find(first_page);
    return found == blocks_.end() ? std::span<const uint32_t>() : found->second.signs;
  }
  // Return the words of a block of so many vectors, and those of their signs.
  [[nodiscard]] size_t SignWords(int64_t vectors) const {
    return static_cast<size_t>((vectors + kTileVectors - 1) / kTileVectors * SignWordsOf(MeaningQuadsOf(dimension_)) *
                               kTileVectors);
  }
  [[nodiscard]] size_t TileWords(int64_t vectors) const {
    return static_cast<size_t>((vectors + kTileVectors - 1) / kTileVectors *
                               MeaningTileWords(MeaningQuadsOf(dimension_)));
  }
  [[nodiscard]] int32_t dimension() const { return dimension_; }
  [[nodiscard]] int64_t bytes() const;  // without what is mapped, which is the system's

 private:
  struct Page {
    const uint32_t* tiles = nullptr;  // of its block; none without vectors
    const uint32_t* signs = nullptr;  // the same
    int32_t first = 0;                // its vectors among the block's
    int32_t last = 0;
    bool mapped = false;
  };
  using Buffer = CacheLineVector<uint32_t>;

  struct Block {
    std::span<const uint32_t> tiles;
    std::span<const uint32_t> signs;
    Buffer own;  // which both lie in; empty if they are mapped
  };

  // Make tiles and signs of vectors [n, dimension].
  [[nodiscard]] Block BlockOf(std::span<const int8_t> vectors) const;
  void Place(int32_t first_page, std::span<const int32_t> counts, Block block);
  void Remove(int32_t first_page);

  int32_t dimension_;
  StableVector<Page> pages_;
  std::unordered_map<int32_t, Block> blocks_;  // by first page
  int64_t own_bytes_ = 0;
};

}  // namespace everlong::index
