// Score every page for a question: late interaction over MeaningVectors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/index/block_table.h"
#include "everlong/index/meaning_job.h"
#include "everlong/index/page_filter.h"
#include "meaning_kernel.h"
#include "meaning_vectors.h"

namespace everlong::index {

// A question's rows, rounded and in blocks as the kernels take them.
class MeaningQuery {
 public:
  // rows [tokens, dimension], numbers up to kLargestElement.
  MeaningQuery(std::span<const float> rows, int32_t dimension);

  struct Block {
    MeaningRows rows;
    std::vector<double> scales;  // [rows.count()]: a token's weight over the length of its rounded row
  };
  [[nodiscard]] std::span<const Block> blocks() const { return blocks_; }
  // Return the sum of the weights.
  [[nodiscard]] double whole() const { return whole_; }

 private:
  std::vector<Block> blocks_;
  double whole_ = 0;
};

// The pages of a filter that have vectors, and the positions among them of the pages beside each; its own if none.
struct MeaningPages {
  std::vector<int32_t> ordinals;  // ascending
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};
MeaningPages PagesOfMeaning(const MeaningVectors& vectors, const BlockTable& table, const PageFilter& filter);

// [pages]
std::vector<MeaningScore> ScoreMeaning(const MeaningQuery& query, const MeaningVectors& vectors,
                                       const MeaningPages& pages);

}  // namespace everlong::index
