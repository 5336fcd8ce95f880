// What the pages of a walk say: their token ids, and the vectors of meaning that are stored with them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/meaning.h"
#include "everlong/index/page_filter.h"
#include "everlong/store/memory_store.h"
#include "memory_state.h"

namespace everlong::os {

// Use it for one walk, while the index is read. What it refers to must outlive it. What was read is kept.
class WalkTexts {
 public:
  using Ids = std::set<int32_t>;
  // The token ids of a page and its neighbours, in order, and for each id its page and its place there.
  struct Text {
    std::vector<int32_t> ids;
    std::vector<std::pair<int32_t, int32_t>> at;
  };

  // `options` are of the vectors of meaning. None: there are no vectors.
  WalkTexts(const MemoryState& state, std::optional<index::MeaningOptions> options, int32_t neighbours,
            const index::PageFilter& filter)
      : state_(state),
        table_(state.index.table()),
        filter_(filter),
        options_(std::move(options)),
        neighbours_(neighbours) {}

  [[nodiscard]] const std::optional<index::MeaningOptions>& options() const { return options_; }
  [[nodiscard]] std::vector<int32_t> Surroundings(int32_t page) const;  // with itself, in order
  Result<std::span<const int32_t>> IdsOf(int32_t page);
  Result<Text> TextOf(int32_t page);
  // Return the part [first, last) of a text that speaks of `asked`.
  [[nodiscard]] std::pair<size_t, size_t> Window(const Text& text, const Ids& asked) const;
  // Return the stored vectors [n, dimension] of these tokens, of unit length; none without.
  std::vector<float> Vectors(const Text& text, size_t first, size_t last);
  // Return the score of the rarest shared run of the tokens that count, 0 to 1.
  [[nodiscard]] float SharedRun(std::span<const int32_t> text, const Ids& counted, std::span<const int32_t> page) const;
  [[nodiscard]] double Idf(int32_t id) const;

 private:
  // Return the tensor of a block's vectors; nullptr where there is none to read.
  const store::Tensor* TensorOf(int64_t block);

  const MemoryState& state_;
  const index::BlockTable& table_;
  const index::PageFilter& filter_;
  const std::optional<index::MeaningOptions> options_;
  const int32_t neighbours_;
  std::map<int64_t, std::vector<int32_t>> ids_;  // of blocks that were read
  std::map<int64_t, std::optional<store::Tensor>> tensors_;
  mutable std::unordered_map<int32_t, double> idf_;
};

// Return the length of a row.
double Norm(std::span<const float> row);

}  // namespace everlong::os
