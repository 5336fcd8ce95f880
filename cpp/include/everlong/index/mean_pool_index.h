// The designs' MVP index (3.1.2): one vector a block, the mean of its un-rotated keys; cosine against the mean query.
// Kept as a baseline: it is at chance on real questions (findings.md).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::index {

struct BlockHit {
  int64_t block = 0;
  float score = 0;  // cosine
};

// Same locking as HeadsIndex.
class MeanPoolIndex {
 public:
  explicit MeanPoolIndex(int32_t dimension) : dimension_(dimension) {}

  // keys_sum [dimension] over `tokens` tokens.
  Status Add(int64_t block, std::span<const float> keys_sum, int64_t tokens);
  void Forget(int64_t block);
  // The k blocks of largest cosine, best first, ties by the older block.
  [[nodiscard]] Result<std::vector<BlockHit>> Search(std::span<const float> query, int32_t k) const;
  [[nodiscard]] int32_t dimension() const { return dimension_; }
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(blocks_.size()); }

 private:
  int32_t dimension_;
  std::vector<int64_t> blocks_;
  std::vector<float> means_;  // [blocks, dimension], unit length
};

}  // namespace everlong::index
