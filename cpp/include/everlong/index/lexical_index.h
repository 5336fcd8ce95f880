// Pages as rows of SQLite FTS5 over their token ids, ranked by BM25. Rebuildable from the store at any time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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

  // The next page ordinal.
  virtual Status Add(std::span<const int32_t> token_ids) = 0;
  // The k best pages by BM25 for any of the ids; ties by the older page. k >= 1.
  [[nodiscard]] virtual Result<std::vector<Hit>> Search(std::span<const int32_t> token_ids, int32_t k,
                                                       const PageFilter& filter) const = 0;
  [[nodiscard]] virtual int32_t pages() const = 0;
};

}  // namespace everlong::index
