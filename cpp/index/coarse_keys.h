// The second level of HeadsIndex: every key in four bits along the few directions in which the keys of its head differ
// most.
//
// A score is q . k. With orthonormal axes A [d, D], (A q) . (A k) is the score along those axes. The rest has two
// parts. One is the same for all keys, so a softmax does not see it. The other is as small as the keys' differences
// there. The axes are the eigenvectors of the largest eigenvalues of the keys' covariance (principal components).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coarse_kernel.h"
#include "everlong/base/stable_vector.h"
#include "key_tiles.h"
#include "page_room.h"

namespace everlong::index {

// What a key head's codes mean: along axis a, code c is the number least[a] + c * steps[a]. Tables of all key heads.
struct CoarseAxes {
  std::vector<float> axes;   // [key_heads][2 * PairsOf(D)][dims]; zeros past an odd D
  std::vector<float> least;  // [key_heads][dims]
  std::vector<float> steps;  // [key_heads][dims], above 0
  bool operator==(const CoarseAxes&) const = default;
};

// Threads are as for HeadsIndex. Call nothing but learned and bytes before Learn or Use.
class CoarseKeys {
 public:
  CoarseKeys(int32_t key_heads, int32_t head_dim);

  // Return how many directions are kept: three eighths of D, filled up to whole words of codes. On SmolLM2's retrieval
  // heads (D = 64) 24 directions serve, and 16 do not (docs/lab/measured/indexes.md).
  [[nodiscard]] static constexpr int32_t DimsOf(int32_t head_dim) {
    return (head_dim * 3 / 8 + kWordAxes - 1) / kWordAxes * kWordAxes + (head_dim < 3 ? kWordAxes : 0);
  }

  // Find the axes from pages spread over the first `pages` of `keys`, without their first sinks [pages] tokens. Once.
  // Return false, and learn nothing, where a key is not a number.
  [[nodiscard]] bool Learn(const KeyTiles& keys, const StableVector<int32_t>& sinks, int32_t pages);
  // Use the axes of another CoarseKeys of this shape instead; false if they are not of this shape.
  [[nodiscard]] bool Use(CoarseAxes axes);
  [[nodiscard]] bool learned() const { return !axes_.axes.empty(); }
  [[nodiscard]] const CoarseAxes& axes() const { return axes_; }
  // Return zeros in the shape of axes().
  [[nodiscard]] CoarseAxes Empty() const;

  // Take in the pages of `keys` that are not here yet.
  void Follow(const KeyTiles& keys);
  // Take in the next page, as words() of a CoarseKeys with these axes returned it. The words are mapped from a file,
  // and are there as long as this object. Any words will do.
  void AddMapped(std::span<const uint32_t> words) { pages_.push_back(words.data()); }
  // Forget a page that has so many tokens, as KeyTiles::Forget.
  void Forget(int32_t page, int32_t tokens);

  [[nodiscard]] int32_t pages() const { return pages_.size(); }
  [[nodiscard]] size_t PageWords(int32_t tokens) const { return static_cast<size_t>(key_heads_) * HeadWords(tokens); }
  // Return the codes of a page of so many tokens, of one key head after the other.
  [[nodiscard]] std::span<const uint32_t> words(int32_t page, int32_t tokens) const {
    return {pages_[page], PageWords(tokens)};
  }
  // Return the codes [tiles][words][kTileTokens] of a page of so many tokens, at least one.
  [[nodiscard]] const uint32_t* tiles(int32_t page, int32_t tokens, int32_t key_head) const {
    return pages_[page] + static_cast<size_t>(key_head) * HeadWords(tokens);
  }
  // Return how many words a token has.
  [[nodiscard]] int32_t token_words() const { return DimsOf(head_dim_) / kWordAxes; }
  // Set out [DimsOf(D)] to what a code of 1 adds to the score of a query [D], along each axis of a key head.
  void Project(int32_t key_head, std::span<const float> query, std::span<float> out) const;
  [[nodiscard]] int64_t bytes() const;

 private:
  [[nodiscard]] size_t HeadWords(int32_t tokens) const {
    return static_cast<size_t>(TilesOf(tokens)) * static_cast<size_t>(token_words() * kTileTokens);
  }
  [[nodiscard]] size_t AxesSize() const { return 2 * static_cast<size_t>(PairsOf(head_dim_) * DimsOf(head_dim_)); }
  // Make of axes_ what the kernel takes.
  void Prepare();
  // Write the codes of a page. `room` is for keys in bytes.
  void Encode(const KeyTiles& keys, int32_t page, std::vector<uint32_t>& room, uint32_t* out) const;

  int32_t key_heads_;
  int32_t head_dim_;
  CoarseAxes axes_;
  std::vector<float> scaled_axes_;  // axes_.axes / steps
  std::vector<float> offsets_;      // 0.5 - least / steps: it rounds to the nearest code
  PageRoom room_;
  StableVector<const uint32_t*> pages_;  // none of an empty page
};

}  // namespace everlong::index
