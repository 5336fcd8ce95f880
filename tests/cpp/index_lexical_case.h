// Pages of token ids with their index by words, and the scores of BM25 from the definition.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "../../cpp/index/lexical_index.h"
#include "everlong/index/block_table.h"
#include "everlong/index/token_statistics.h"
#include "index_page_mask.h"

namespace everlong::index {

using Pages = std::vector<std::vector<int32_t>>;

constexpr int32_t kPageTokens = 64;

// The index and what it goes by, of pages 0, 1, 2 ... of one stream, a block each. Behind a page that is shorter than
// kPageTokens there is a gap: the next is no neighbour of it.
class Words {
 public:
  Status Add(std::span<const int32_t> token_ids) {
    EVERLONG_RETURN_IF_ERROR(index_.Add(table_.pages(), token_ids));
    statistics_.AddPage(token_ids);
    const int64_t begin = int64_t{kPageTokens} * table_.pages();
    const int64_t tokens = std::clamp<int64_t>(std::ssize(token_ids), 1, kPageTokens);
    table_.Append({.id = table_.pages() + 1, .span = {begin, begin + tokens}, .source = "book", .tags = {}});
    return OkStatus();
  }
  void Remove(int32_t page, std::span<const int32_t> token_ids) {
    table_.Forget(page + 1);
    index_.Remove(page, token_ids);
    statistics_.RemovePage(token_ids);
  }
  [[nodiscard]] Result<std::vector<Hit>> Search(std::span<const int32_t> token_ids, int32_t k,
                                                const PageFilter& filter) const {
    EVERLONG_ASSIGN_OR_RETURN(LexicalIndex::Found found, index_.Search(token_ids, k, filter));
    return std::move(found.pages);
  }
  [[nodiscard]] float WholeScore(std::span<const int32_t> token_ids) const { return index_.WholeScore(token_ids); }
  [[nodiscard]] const BlockTable& table() const { return table_; }
  [[nodiscard]] const LexicalIndex& index() const { return index_; }

 private:
  BlockTable table_{kPageTokens};
  TokenStatistics statistics_;
  LexicalIndex index_{table_, statistics_};
};

inline std::unique_ptr<Words> Build(const Pages& pages) {
  auto index = std::make_unique<Words>();
  for (const auto& page : pages) EXPECT_TRUE(index->Add(page).ok());
  return index;
}

// "The bm25() function" of SQLite's FTS5 documentation, in fp64, as a positive number: k1 = 1.2, b = 0.75, IDF =
// log((N - n + 1/2) / (n + 1/2)), at least 1e-6. Only pages that hold one of the ids; an empty page was forgotten. With
// `groups`, of the texts that these numbers of pages are together, on average as long as three pages.
inline std::map<int32_t, double> Bm25(const Pages& pages, const std::set<int32_t>& ids,
                                      const std::map<int32_t, std::vector<int32_t>>* groups = nullptr) {
  double live = 0;
  double tokens = 0;
  for (const auto& page : pages) {
    live += page.empty() ? 0 : 1;
    tokens += static_cast<double>(page.size());
  }
  const double mean_length = tokens / live;
  std::map<int32_t, double> scores;
  for (const int32_t id : ids) {
    double holding = 0;
    for (const auto& page : pages) holding += std::ranges::find(page, id) != page.end() ? 1 : 0;
    const double idf = std::max(1e-6, std::log((live - holding + 0.5) / (holding + 0.5)));
    for (size_t page = 0; page < pages.size(); ++page) {
      double frequency = 0;
      double length = 0;
      for (const int32_t of :
           groups == nullptr ? std::vector{static_cast<int32_t>(page)} : groups->at(static_cast<int32_t>(page))) {
        frequency += static_cast<double>(std::ranges::count(pages[static_cast<size_t>(of)], id));
        length += static_cast<double>(pages[static_cast<size_t>(of)].size());
      }
      if (frequency == 0) continue;
      length /= groups == nullptr ? mean_length : 3 * mean_length;
      scores[static_cast<int32_t>(page)] +=
          idf * frequency * (1.2 + 1) / (frequency + 1.2 * (1 - 0.75 + 0.75 * length));
    }
  }
  return scores;
}

inline void ExpectRanked(const std::vector<Hit>& hits, std::map<int32_t, double> reference, int32_t k,
                         const PageMask& filter) {
  std::erase_if(reference, [&](const auto& entry) { return !filter.Allows(entry.first); });
  std::vector<double> ranked;
  for (const auto& [page, score] : reference) ranked.push_back(score);
  std::ranges::sort(ranked, std::greater<>());
  ASSERT_EQ(hits.size(), std::min(ranked.size(), static_cast<size_t>(k)));
  for (size_t i = 0; i < hits.size(); ++i) {
    const Hit& hit = hits[i];
    ASSERT_TRUE(reference.contains(hit.page));
    EXPECT_NEAR(hit.score, reference[hit.page], 1e-6 * reference[hit.page] + 1e-12);
    EXPECT_NEAR(hit.score, ranked[i], 1e-6 * ranked[i] + 1e-12) << "rank " << i;
    if (i > 0) {
      const Hit& before = hits[i - 1];
      EXPECT_TRUE(before.score > hit.score || (before.score == hit.score && before.page < hit.page));
    }
  }
}

// In both granularities. Neighbours are what the table calls so, and the filter allows.
inline void ExpectBm25(const LexicalIndex& index, const BlockTable& table, const Pages& pages,
                       const std::vector<int32_t>& query, int32_t k, const PageMask& filter) {
  const std::set<int32_t> ids(query.begin(), query.end());
  const auto found = index.Search(query, k, filter);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  ExpectRanked(found->pages, Bm25(pages, ids), k, filter);
  std::map<int32_t, std::vector<int32_t>> groups;
  for (int32_t page = 0; page < static_cast<int32_t>(pages.size()); ++page) {
    groups[page] = {page};
    for (const int32_t beside : {table.Previous(page), table.Next(page)}) {
      if (beside >= 0 && filter.Allows(beside)) groups[page].push_back(beside);
    }
  }
  ExpectRanked(found->groups, Bm25(pages, ids, &groups), k, filter);
}

// Ids as unevenly spread as words are.
inline Pages RandomPages(int32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> id(0.02);
  Pages pages(static_cast<size_t>(count));
  for (auto& page : pages) {
    page.resize(random() % 3 == 0 ? 1 + random() % 64 : 64);
    std::ranges::generate(page, [&] { return static_cast<int32_t>(id(random)); });
  }
  return pages;
}

// Blocks of one to four pages of two streams and two sources, many of them forgotten: what a page's neighbours are the
// table says, and what they have together is counted here.
class Library {
 public:
  explicit Library(uint32_t seed) : random_(seed) {}

  void AddBlock() {
    const auto stream = static_cast<int64_t>(random_() % 2);
    const auto tokens = static_cast<int64_t>(1 + random_() % (4 * kPageTokens));
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    std::exponential_distribution<double> id(0.05);
    std::ranges::generate(ids, [&] { return static_cast<int32_t>(id(random_)); });
    int64_t& end = ends_[stream];
    if (random_() % 8 == 0) end += 3;  // a gap
    NewBlock block;
    block.id = ++last_id_;
    block.stream = stream;
    block.span = {end, end + tokens};
    block.source = random_() % 6 == 0 ? "letter" : "book";
    end += tokens;
    for (int64_t first = 0; first < tokens; first += kPageTokens) {
      const auto of_page = std::span(ids)
                               .subspan(static_cast<size_t>(first))
                               .first(static_cast<size_t>(std::min<int64_t>(kPageTokens, tokens - first)));
      ASSERT_TRUE(index_.Add(static_cast<int32_t>(pages_.size()), of_page).ok());
      pages_.emplace_back(of_page.begin(), of_page.end());
    }
    statistics_.AddBlock(ids, kPageTokens);
    table_.Append(block);
  }

  void ForgetSome() {
    const BlockEntry block = table_.block(static_cast<int32_t>(random_() % static_cast<uint64_t>(table_.blocks())));
    if (block.forgotten) return;
    table_.Forget(block.id);
    for (int32_t page = block.first_page; page < block.pages().last; ++page) {
      std::vector<int32_t>& ids = pages_[static_cast<size_t>(page)];
      index_.Remove(page, ids);
      statistics_.RemovePage(ids);
      ids.clear();
    }
  }

  [[nodiscard]] std::vector<int32_t> Question() {
    std::vector<int32_t> ids(1 + random_() % 12);
    std::ranges::generate(ids, [&] { return static_cast<int32_t>(random_() % 120); });
    return ids;
  }

  // Pages that are not forgotten and, unless `every`, some of these.
  [[nodiscard]] PageMask Filter(bool every) {
    PageMask filter(table_.pages(), false);
    for (const int32_t page : table_.LiveOrdinals(table_.All())) filter.Set(page, every || random_() % 4 != 0);
    return filter;
  }

  void Expect(const std::vector<int32_t>& query, int32_t k, const PageMask& filter) const {
    ExpectBm25(index_, table_, pages_, query, k, filter);
  }

  [[nodiscard]] const BlockTable& table() const { return table_; }
  [[nodiscard]] const TokenStatistics& statistics() const { return statistics_; }
  [[nodiscard]] const LexicalIndex& index() const { return index_; }
  [[nodiscard]] const Pages& pages() const { return pages_; }

 private:
  std::mt19937 random_;
  BlockTable table_{kPageTokens};
  TokenStatistics statistics_;
  LexicalIndex index_{table_, statistics_};
  std::map<int64_t, int64_t> ends_;
  int64_t last_id_ = 0;
  Pages pages_;
};

}  // namespace everlong::index
