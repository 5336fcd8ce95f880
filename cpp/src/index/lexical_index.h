// What is behind the part "lexical": pages as rows of SQLite FTS5 over their token ids, ranked by BM25.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/token_statistics.h"

namespace everlong::index {

// Thread-safe, one adder at a time. A search waits for no more than one page that is being added, and for searches
// beside it: they take turns.
class LexicalIndex {
 public:
  // In RAM. `statistics` are those of the pages that are added, and outlive the index.
  static Result<std::unique_ptr<LexicalIndex>> Create(const TokenStatistics& statistics);
  virtual ~LexicalIndex() = default;

  // kInvalidArgument on a negative id.
  virtual Status Add(int32_t page, std::span<const int32_t> token_ids) = 0;
  // Takes a page out, frequencies and lengths too; `token_ids` are those it was added with.
  virtual Status Remove(int32_t page, std::span<const int32_t> token_ids) = 0;
  // The k best pages by BM25 (k1 = 1.2, b = 0.75) for any of the distinct ids, best first, ties by the older page;
  // fewer when fewer match. Scores are positive, larger is better. Where the ids occur in too many pages for a quick
  // answer, the commonest are left out. No hits when no id occurs. kInvalidArgument on a negative id or k < 1.
  [[nodiscard]] virtual Result<std::vector<Hit>> Search(std::span<const int32_t> token_ids, int32_t k,
                                                        const PageFilter& filter) const = 0;
  // BM25 of a page of average length that has once each of the distinct ids that Search looks for, and those that no
  // page has. 0 for no ids.
  [[nodiscard]] virtual float WholeScore(std::span<const int32_t> token_ids) const = 0;
  [[nodiscard]] virtual int64_t bytes() const = 0;  // of host memory, about
};

}  // namespace everlong::index
