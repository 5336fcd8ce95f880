// The index of the part "lexical": BM25 over the token ids of pages, each alone and with its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/index_file.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/part.h"
#include "everlong/index/token_statistics.h"
#include "postings.h"
#include "saved_postings.h"

namespace everlong::index {

// One thread at a time adds and removes. Searches run beside it and beside each other, over pages that are in the table
// and that `filter` allows. They wait at most for one page that is being added.
class LexicalIndex {
 public:
  // The most that one search may cost: postings, and ids.
  static constexpr int64_t kMostPostings = 100'000;
  static constexpr size_t kMostIds = 256;

  // Both must outlive the index. The statistics are those of the pages that are added.
  LexicalIndex(const BlockTable& table, const TokenStatistics& statistics) : table_(table), statistics_(statistics) {}

  // Add a page behind all others. kInvalidArgument on a negative id.
  Status Add(int32_t page, std::span<const int32_t> token_ids);
  // Remove a page, with its frequencies and lengths. `token_ids` are those that it was added with.
  void Remove(int32_t page, std::span<const int32_t> token_ids) { postings_.Remove(page, token_ids); }

  struct Found {
    std::vector<Hit> pages;
    // A page and its neighbours that the filter allows count as one text. Counts and lengths are summed, and its
    // average length is three times that of a page. Its inverse document frequencies are those of pages. The score is
    // given at the middle page.
    std::vector<Hit> groups;
  };
  // Return the k best of both by BM25 (k1 = 1.2, b = 0.75) for any of the distinct ids, best first, ties by the older
  // page; fewer when fewer match. Scores are positive, larger is better. Where the ids occur in more than kMostPostings
  // pages in all, the commonest ids are left out. They say the least: if half of the pages have an id, BM25's IDF is at
  // its floor. No hits when no id occurs. kInvalidArgument on a negative id or k < 1.
  [[nodiscard]] Result<Found> Search(std::span<const int32_t> token_ids, int32_t k, const PageFilter& filter) const;
  // Return the BM25 of a page or group of average length that has each distinct id once. These are the ids that Search
  // looks for, and those that no page has. 0 for no ids.
  [[nodiscard]] float WholeScore(std::span<const int32_t> token_ids) const;

  [[nodiscard]] int32_t pages() const { return postings_.pages(); }  // one past the newest
  // Add what TokenStatistics::AddBlock would have counted for all pages that are here.
  void CountInto(TokenStatistics& statistics) const { postings_.CountInto(statistics); }

  // Save the pages of `kept` to one file, replaced whole or not at all (docs/format.md, "Index files"). kIoError;
  // kCorrupt when a file that they lie in is damaged.
  [[nodiscard]] Status Save(const IndexFile& file, std::span<const int32_t> kept) const;
  // Map what Save wrote, behind the pages that are here, before any is added: its pages, with ascending ordinals; those
  // of -1 are left out. Add what `statistics`, if given, would have counted for them. kNotFound, kIoError; kCorrupt
  // when what the open reads is damaged, cut short, or of other pages. Do not use the index after an error.
  Status Load(const FilePath& file, std::span<const SavedPage> pages, Lengths lengths = Lengths::kOfTokens,
              TokenStatistics* statistics = nullptr);

  [[nodiscard]] int64_t bytes() const { return postings_.bytes(); }  // of host memory, about

 private:
  struct LookedFor {
    int32_t id = 0;
    double idf = 0;
  };
  // Return the distinct ids that occur, rarest first, as many as one search may cost; at least one if any occurs.
  [[nodiscard]] std::vector<LookedFor> RarestIds(std::span<const int32_t> token_ids) const;

  const BlockTable& table_;
  const TokenStatistics& statistics_;
  Postings postings_;
};

}  // namespace everlong::index
