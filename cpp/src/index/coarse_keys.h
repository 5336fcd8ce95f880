// The second level of HeadsIndex: every key along the few directions in which the keys of its head differ most.
//
// A score is q . k. With orthonormal axes A [d, D], (A q) . (A k) is what the score has along those axes; the rest has
// a part that is the same for all keys, which a softmax does not see, and a part as small as the keys differ there.
// Axes are the eigenvectors of the largest eigenvalues of the keys' covariance (principal components).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/stable_vector.h"
#include "key_tiles.h"

namespace everlong::index {

// Same threads as HeadsIndex; nothing is asked of it before Learn.
class CoarseKeys {
 public:
  CoarseKeys(int32_t key_heads, int32_t head_dim);

  // Directions that are kept: three eighths of D, an even number. On SmolLM2's retrieval heads (D = 64) a page's
  // largest score along 24 directions keeps all of the exact 16 best pages among the best twentieth of 2,151
  // (docs/measured/indexes.md).
  [[nodiscard]] static constexpr int32_t DimsOf(int32_t head_dim) {
    return head_dim < 4 ? 2 : (head_dim * 3 / 8 + 1) / 2 * 2;
  }

  // Finds the axes from pages spread over the first `pages` of `keys`, without their first sinks [pages] tokens. Once.
  void Learn(const KeyTiles& keys, const StableVector<int32_t>& sinks, int32_t pages);
  [[nodiscard]] bool learned() const { return !axes_.empty(); }
  // Takes in the pages of `keys` that are not here yet. After Learn. False where a key is no finite bf16 along its
  // axes, which no key of 1e18 or less is: then this is of no use any more.
  [[nodiscard]] bool Follow(const KeyTiles& keys);
  // As KeyTiles::Forget.
  void Forget(int32_t page) { tiles_.Forget(page); }

  // out [DimsOf(D)]: a query [D] along the axes of a key head.
  void Project(int32_t key_head, std::span<const float> query, std::span<float> out) const;
  [[nodiscard]] const KeyTiles& tiles() const { return tiles_; }
  [[nodiscard]] int64_t bytes() const;

 private:
  int32_t key_heads_;
  int32_t head_dim_;
  std::vector<float> axes_;  // [key_heads][D][dims]
  KeyTiles tiles_;
};

}  // namespace everlong::index
