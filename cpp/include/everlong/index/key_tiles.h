// The keys of an archive, laid out for the scan of heads_index.h: pages in tiles of 32 tokens, dimension by dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::index {

// A tile is [pairs][32] words of 32 bits, one a token: the low half is dimension 2 * pair in bf16, the high half the
// next one (0 past an odd D). That is what a dot product of bf16 pairs takes; elsewhere a shift and a mask make floats
// of them. A page's last tile is filled with zeros.
inline constexpr int32_t kTileTokens = 32;
inline constexpr int32_t PairsOf(int32_t head_dim) { return (head_dim + 1) / 2; }

// Pages never move once added, and growing copies nothing. Same locking as HeadsIndex.
class KeyTiles {
 public:
  KeyTiles(int32_t key_heads, int32_t head_dim);

  // The next page. keys [key_heads, tokens, D], tokens >= 1. kInvalidArgument on a key that is no finite bf16.
  Status Add(std::span<const float> keys, int32_t tokens);

  // The next page as keys() of another KeyTiles of this shape gave it, all its key heads one after the other.
  void AddWords(std::span<const uint32_t> words, int32_t tokens);
  // Every key head of a page, as AddWords takes it.
  [[nodiscard]] std::span<const uint32_t> words(int32_t page) const;
  // How many words a page of so many tokens has.
  [[nodiscard]] size_t PageWords(int32_t tokens) const {
    return static_cast<size_t>(key_heads_) * static_cast<size_t>((tokens + kTileTokens - 1) / kTileTokens) * TileSize();
  }

  [[nodiscard]] int32_t pages() const { return static_cast<int32_t>(pages_.size()); }
  [[nodiscard]] int32_t tokens(int32_t page) const { return pages_[static_cast<size_t>(page)].tokens; }
  [[nodiscard]] int32_t tiles(int32_t page) const { return (tokens(page) + kTileTokens - 1) / kTileTokens; }
  // [tiles(page)][pairs][kTileTokens], at an address divisible by 64.
  [[nodiscard]] const uint32_t* keys(int32_t page, int32_t key_head) const;
  // The keys of a page as they are kept: out [tokens(page), D].
  void Decode(int32_t page, int32_t key_head, std::span<float> out) const;
  // The length of the longest key of a key head so far.
  // Keys that come by AddWords count as they are told to.
  [[nodiscard]] std::span<const double> longest() const { return longest_; }
  void SetLongest(std::span<const double> longest) { longest_.assign(longest.begin(), longest.end()); }
  [[nodiscard]] double longest(int32_t key_head) const { return longest_[static_cast<size_t>(key_head)]; }
  [[nodiscard]] int64_t bytes() const;

 private:
  static constexpr size_t kAlignment = 64;
  struct FreeAligned {
    void operator()(uint32_t* words) const { ::operator delete[](words, std::align_val_t(kAlignment)); }
  };
  struct Page {
    uint32_t* keys = nullptr;  // in a slab
    int32_t tokens = 0;
  };

  [[nodiscard]] size_t TileSize() const { return static_cast<size_t>(PairsOf(head_dim_)) * kTileTokens; }
  uint32_t* Reserve(size_t words);

  int32_t key_heads_;
  int32_t head_dim_;
  std::vector<std::unique_ptr<uint32_t[], FreeAligned>> slabs_;
  size_t slab_words_ = 0;   // of the last slab
  size_t slab_used_ = 0;    // of the last slab
  size_t total_words_ = 0;  // of all slabs
  std::vector<Page> pages_;
  std::vector<double> longest_;  // [key_heads]
};

}  // namespace everlong::index
