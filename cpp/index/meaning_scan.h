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

// Of a real question's weight, eight rows carry four fifths (docs/lab/measured/indexes.md).
inline constexpr size_t kSignRows = 8;

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
  // Return the heaviest rows, at most kSignRows, by which the first level asks; at most one block.
  [[nodiscard]] std::span<const Block> heaviest() const { return heaviest_; }
  // Return the number of rows that are not zeros.
  [[nodiscard]] size_t rows() const { return rows_; }
  // Return the sum of the weights.
  [[nodiscard]] double whole() const { return whole_; }

 private:
  struct Row {
    std::vector<int8_t> codes;
    double weight = 0;
    double scale = 0;
  };
  static std::vector<Block> BlocksOf(std::span<const Row> rows, int32_t dimension);

  std::vector<Block> blocks_;
  std::vector<Block> heaviest_;
  size_t rows_ = 0;
  double whole_ = 0;
};

// The pages of a filter that have vectors, and the positions among them of the pages beside each; its own if none.
struct MeaningPages {
  std::vector<int32_t> ordinals;  // ascending
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};
MeaningPages PagesOfMeaning(const MeaningVectors& vectors, const BlockTable& table, const PageFilter& filter);

// What of the vectors is read: all numbers, or their signs (sign_kernel.h). Scores by signs are about as large.
enum class MeaningLevel : uint8_t { kExact, kSigns };

// Make scores 0 that no vectors have: saved ones may be damaged (MeaningVectors::PutMapped). `whole` is the question's.
void DropImpossible(double whole, std::span<MeaningScore> scores);

// [pages]
std::vector<MeaningScore> ScoreMeaning(const MeaningQuery& query, const MeaningVectors& vectors,
                                       const MeaningPages& pages, MeaningLevel level);
// Return what pages [n] score alone; 0 for one without vectors.
std::vector<float> ScoreAlone(const MeaningQuery& query, const MeaningVectors& vectors,
                              std::span<const int32_t> ordinals, MeaningLevel level);

// What the first level leaves.
struct MeaningChoice {
  MeaningPages pages;         // the chosen ones, and those beside them, which count in the score of a group
  std::vector<int32_t> kept;  // the chosen ones' positions among them, ascending
};
// Choose the `count` pages with the best scores alone, and as many with their neighbours. coarse [pages].
MeaningChoice ChooseMeaning(const MeaningPages& pages, std::span<const MeaningScore> coarse, size_t count);

}  // namespace everlong::index
