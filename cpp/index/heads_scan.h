// One pass of HeadsIndex over some pages: each page's part of every query row's softmax.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coarse_kernel.h"
#include "coarse_keys.h"
#include "everlong/base/stable_vector.h"
#include "everlong/index/page_filter.h"
#include "heads_kernel.h"
#include "key_tiles.h"

namespace everlong::index {

// Query rows that share a key head, in the layouts of the kernels, times log2(e) / sqrt(D).
struct RowBlock {
  int32_t key_head = 0;
  QueryRows rows;                  // of D dimensions
  CoarseRows coarse_rows;          // those of the heaviest tokens along CoarseKeys' axes; zeros behind them
  float weights[kBlockRows] = {};  // 0 for rows of padding
  double bounds[kBlockRows] = {};  // no score of a row is larger
};

// The keys that a pass reads. Of every key, it computes the sum of 2^score in a page.
struct ScannedKeys {
  const KeyTiles& tiles;
  int32_t dim = 0;
  const StableVector<int32_t>& sinks;  // [pages]
  const CoarseKeys* coarse = nullptr;  // if set: 2^(the largest score) in a page, by its codes
};

// Return the values that are subtracted from every row's scores before 2 is raised to them, [blocks * kBlockRows]. They
// ensure that no sum overflows and that the largest score counts.
std::vector<float> ReferencesOf(const ScannedKeys& keys, std::span<const RowBlock> blocks, const PagePositions& pages);

// Sums relative to `references`. Their order does not depend on the number of threads.
class HeadsScan {
 public:
  HeadsScan(const ScannedKeys& keys, std::span<const RowBlock> blocks, const PagePositions& pages,
            std::span<const float> references);

  // Return the sums over the pages, of every row: [blocks * kBlockRows].
  [[nodiscard]] std::span<const double> totals() const { return totals_; }
  // Add to `mass` [pages] every row's weight times a page's part in shares[row] of its softmax.
  void AddMass(std::span<const double> shares, std::span<float> mass) const;

 private:
  std::span<const RowBlock> blocks_;
  int32_t pages_;
  std::unique_ptr<float[]> sums_;  // [pages][rows]
  std::vector<double> totals_;
};

}  // namespace everlong::index
