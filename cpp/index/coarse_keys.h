// The second level of HeadsIndex: every key along the few directions in which the keys of its head differ most.
//
// A score is q . k. With orthonormal axes A [d, D], (A q) . (A k) is the score along those axes. The rest has two
// parts. One is the same for all keys, so a softmax does not see it. The other is as small as the keys' differences
// there. The axes are the eigenvectors of the largest eigenvalues of the keys' covariance (principal components).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/stable_vector.h"
#include "key_tiles.h"

namespace everlong::index {

// Threads are as for HeadsIndex. Call nothing else before Learn.
class CoarseKeys {
 public:
  CoarseKeys(int32_t key_heads, int32_t head_dim);

  // Return how many directions are kept: three eighths of D, an even number. On SmolLM2's retrieval heads (D = 64),
  // rank pages by their largest score along 24 directions. Then all of the exact 16 best pages are among the best
  // twentieth of 2,151 (docs/lab/measured/indexes.md).
  [[nodiscard]] static constexpr int32_t DimsOf(int32_t head_dim) {
    return head_dim < 4 ? 2 : (head_dim * 3 / 8 + 1) / 2 * 2;
  }

  // Find the axes from pages spread over the first `pages` of `keys`, without their first sinks [pages] tokens. Once.
  void Learn(const KeyTiles& keys, const StableVector<int32_t>& sinks, int32_t pages);
  [[nodiscard]] bool learned() const { return !axes_.empty(); }
  // Take in the pages of `keys` that are not here yet, after Learn. Return false where a key along its axes is not a
  // finite bf16; no key of 1e18 or less is such. This object must not be used after that.
  [[nodiscard]] bool Follow(const KeyTiles& keys);
  // Forget a page, as KeyTiles::Forget.
  void Forget(int32_t page) { tiles_.Forget(page); }

  // Set out [DimsOf(D)] to a query [D] along the axes of a key head.
  void Project(int32_t key_head, std::span<const float> query, std::span<float> out) const;
  [[nodiscard]] const KeyTiles& tiles() const { return tiles_; }
  [[nodiscard]] int64_t bytes() const;

 private:
  int32_t key_heads_;
  int32_t head_dim_;
  // Return the words of a page along the axes, as `tiles_` has them. `room` is for keys in bytes.
  [[nodiscard]] std::vector<uint32_t> Projected(const KeyTiles& keys, int32_t page, std::vector<uint32_t>& room) const;
  // Return the axes of a key head: [2 * PairsOf(D)][dims].
  [[nodiscard]] const float* AxesOf(int32_t key_head) const {
    return axes_.data() + static_cast<size_t>(key_head) * AxesSize();
  }
  [[nodiscard]] size_t AxesSize() const { return 2 * static_cast<size_t>(PairsOf(head_dim_) * DimsOf(head_dim_)); }

  std::vector<float> axes_;  // of every key head; zeros past an odd D
  KeyTiles tiles_;
};

}  // namespace everlong::index
