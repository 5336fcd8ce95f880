// What is behind the part "lexical": BM25 over the token ids of pages, of each page alone and of each with its
// neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/part.h"
#include "everlong/index/token_statistics.h"
#include "postings.h"

namespace everlong::index {

// One thread at a time adds and removes. Searches run beside it and beside each other, over pages that are in the table
// and that `filter` allows; they wait for no more than one page that is being added.
class LexicalIndex {
 public:
  // What one search may cost: so many postings, and so many ids.
  static constexpr int64_t kMostPostings = 100'000;
  static constexpr size_t kMostIds = 256;

  // Both outlive it: the statistics are those of the pages that are added.
  LexicalIndex(const BlockTable& table, const TokenStatistics& statistics) : table_(table), statistics_(statistics) {}

  // A page behind all others. kInvalidArgument on a negative id.
  Status Add(int32_t page, std::span<const int32_t> token_ids);
  // Takes a page out, frequencies and lengths too; `token_ids` are those it was added with.
  void Remove(int32_t page, std::span<const int32_t> token_ids) { postings_.Remove(page, token_ids); }

  struct Found {
    std::vector<Hit> pages;
    // A page and its neighbours that the filter allows as one text: counts and lengths are summed, and its average
    // length is three times that of a page. Its inverse document frequencies are those of pages. The score stands at
    // the page in the middle.
    std::vector<Hit> groups;
  };
  // Of both the k best by BM25 (k1 = 1.2, b = 0.75) for any of the distinct ids, best first, ties by the older page;
  // fewer when fewer match. Scores are positive, larger is better. Where the ids occur in more than kMostPostings pages
  // in all, the commonest are left out, which say the least: from half of the pages on, BM25's IDF is at its floor. No
  // hits when no id occurs. kInvalidArgument on a negative id or k < 1.
  [[nodiscard]] Result<Found> Search(std::span<const int32_t> token_ids, int32_t k, const PageFilter& filter) const;
  // BM25 of a page (or of a group) of average length that has once each of the distinct ids that Search looks for, and
  // those that no page has. 0 for no ids.
  [[nodiscard]] float WholeScore(std::span<const int32_t> token_ids) const;

  [[nodiscard]] int32_t pages() const { return postings_.pages(); }  // one past the newest
  // Adds what TokenStatistics::AddBlock would have counted of all pages that are here.
  void CountInto(TokenStatistics& statistics) const;

  // One file of the pages that `kept` names, replaced whole or not at all (docs/format.md, "Index files"). kIoError.
  [[nodiscard]] Status Save(const FilePath& file, std::span<const int32_t> kept) const;
  // What Save wrote, into an index that has nothing: its pages, whose ordinals ascend; those of -1 are left out.
  // kNotFound, kIoError; kCorrupt when the file is damaged, cut short, or of other pages. After a failure the index is
  // of no use any more.
  Status Load(const FilePath& file, std::span<const SavedPage> pages);

  [[nodiscard]] int64_t bytes() const { return postings_.bytes(); }  // of host memory, about

 private:
  struct LookedFor {
    int32_t id = 0;
    double idf = 0;
  };
  // The distinct ids that occur, rarest first, as many as one search may cost; at least one if any occurs.
  [[nodiscard]] std::vector<LookedFor> RarestIds(std::span<const int32_t> token_ids) const;

  const BlockTable& table_;
  const TokenStatistics& statistics_;
  Postings postings_;
};

}  // namespace everlong::index
