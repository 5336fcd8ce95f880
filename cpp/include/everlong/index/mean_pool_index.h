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
  float score = 0;  // cosine; 0 where either vector is 0
};

// Same locking as HeadsIndex.
class MeanPoolIndex {
 public:
  explicit MeanPoolIndex(int32_t dimension);

  // keys_sum [dimension] over `tokens` tokens. kInvalidArgument on a wrong size, no tokens or a value that is not
  // finite; kAlreadyExists when the block is here.
  Status Add(int64_t block, std::span<const float> keys_sum, int64_t tokens);
  // Nothing happens for a block that is not here.
  void Forget(int64_t block);
  // The k blocks of largest cosine, best first, ties by the older block (the smaller id); all when k is larger than
  // size(). kInvalidArgument on a wrong size, a value that is not finite, or k < 1.
  [[nodiscard]] Result<std::vector<BlockHit>> Search(std::span<const float> query, int32_t k) const;
  [[nodiscard]] int32_t dimension() const { return dimension_; }
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(blocks_.size()); }

 private:
  int32_t dimension_;
  std::vector<int64_t> blocks_;
  std::unordered_map<int64_t, size_t> rows_;  // block -> its place in blocks_
  std::vector<float> means_;                  // [blocks, dimension], unit length
};

}  // namespace everlong::index
