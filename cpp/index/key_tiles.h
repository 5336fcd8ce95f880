// The keys of an archive, laid out for the scan of heads_index.h: pages in tiles of 32 tokens, dimension by dimension.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/mapped_reads.h"
#include "everlong/base/stable_vector.h"
#include "everlong/base/status.h"
#include "everlong/index/key_layout.h"
#include "page_room.h"

namespace everlong::index {

// Pages never move once they are added, and growing copies nothing. Threads are as for HeadsIndex.
class KeyTiles {
 public:
  KeyTiles(int32_t key_heads, int32_t head_dim, KeyStorage storage = KeyStorage::kBf16);

  [[nodiscard]] KeyStorage storage() const { return layout_.storage; }
  [[nodiscard]] const KeyLayout& layout() const { return layout_; }

  // Add the next page. keys [key_heads, tokens, D], tokens >= 1. kInvalidArgument on a key that is not a finite bf16.
  Status Add(std::span<const float> keys, int32_t tokens);

  // Add the next page, as words() of another KeyTiles of this shape and storage returned it. The words are mapped from
  // a file, and are there as long as this object.
  void AddMapped(std::span<const uint32_t> words, int32_t tokens);
  // Add the next page without tokens: an ordinal that stays empty.
  void AddEmpty() { pages_.push_back({}); }
  // Make a page empty. Its keys become zeros, and their room is for other pages. Those that are mapped stay in their
  // file.
  void Forget(int32_t page);
  // Return the key heads of a page one after the other, each its scales and its tiles.
  [[nodiscard]] std::span<const uint32_t> words(int32_t page) const;
  // Return how many words a page of so many tokens has.
  [[nodiscard]] size_t PageWords(int32_t tokens) const { return static_cast<size_t>(key_heads_) * HeadWords(tokens); }
  // Have the words of a page read soon, if they are mapped.
  void ReadSoon(int32_t page, SoonReads& reads) const {
    if (pages_[page].mapped) reads.Add(words(page));
  }

  [[nodiscard]] int32_t pages() const { return pages_.size(); }
  [[nodiscard]] int32_t tokens(int32_t page) const { return pages_[page].tokens; }  // 0: empty
  [[nodiscard]] int32_t tiles(int32_t page) const { return TilesOf(tokens(page)); }
  // [tiles(page)][pairs, or quads][kTileTokens], at the beginning of a cache line.
  [[nodiscard]] const uint32_t* keys(int32_t page, int32_t key_head) const {
    return scales(page, key_head) + layout_.ScaleWords();
  }
  // [layout().ScaleWords()]
  [[nodiscard]] const uint32_t* scales(int32_t page, int32_t key_head) const {
    return pages_[page].words + static_cast<size_t>(key_head) * HeadWords(tokens(page));
  }
  // Decode the keys of a page as they are kept: out [tokens(page), D].
  void Decode(int32_t page, int32_t key_head, std::span<float> out) const;
  // Return the length of each key head's longest key so far, as it is kept. For AddMapped, AddLongest gives it.
  [[nodiscard]] std::vector<double> longest() const { return {longest_.begin(), longest_.end()}; }
  void AddLongest(std::span<const double> longest) {
    for (size_t head = 0; head < longest_.size(); ++head)
      longest_[head] = std::max(longest_[head].load(), longest[head]);
  }
  [[nodiscard]] double longest(int32_t key_head) const { return longest_[static_cast<size_t>(key_head)]; }
  [[nodiscard]] int64_t bytes() const;

 private:
  struct Page {
    const uint32_t* words = nullptr;
    int32_t tokens = 0;
    bool mapped = false;
  };

  [[nodiscard]] size_t HeadWords(int32_t tokens) const { return static_cast<size_t>(layout_.HeadWords(tokens)); }
  // Encode keys [tokens, D] of one key head into its `words`, which are 0, and return the length of the longest.
  double Encode(std::span<const float> keys, uint32_t* words) const;

  int32_t key_heads_;
  KeyLayout layout_;
  PageRoom room_;
  StableVector<Page> pages_;
  std::vector<std::atomic<double>> longest_;  // [key_heads]
};

}  // namespace everlong::index
