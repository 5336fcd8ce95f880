// Pages as rows of SQLite FTS5 over their token ids, ranked by BM25. Rebuildable from the store at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/page_filter.h"

namespace everlong::index {

// Same locking as HeadsIndex.
class LexicalIndex {
 public:
  // In RAM; a memory rebuilds it from its catalog when it is opened.
  static Result<std::unique_ptr<LexicalIndex>> Create();
  virtual ~LexicalIndex() = default;

  // The next page ordinal. kInvalidArgument on a negative id.
  virtual Status Add(std::span<const int32_t> token_ids) = 0;
  // Takes a page out, document frequencies and lengths too; `token_ids` are those it was added with. Its ordinal is not
  // given again.
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
