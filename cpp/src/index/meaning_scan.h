// Every page's score for a question: late interaction over MeaningVectors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/index/block_table.h"
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
  // The sum of the weights.
  [[nodiscard]] double whole() const { return whole_; }

 private:
  std::vector<Block> blocks_;
  double whole_ = 0;
};

// Of pages of a filter that have vectors, by their position.
struct MeaningScores {
  std::vector<int32_t> pages;  // ordinals, ascending
  std::vector<float> alone;
  std::vector<float> with_neighbours;
};
MeaningScores ScoreMeaning(const MeaningQuery& query, const MeaningVectors& vectors, const BlockTable& table,
                           const PageFilter& filter);

}  // namespace everlong::index
