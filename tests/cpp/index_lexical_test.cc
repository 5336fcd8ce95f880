#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../../cpp/index/lexical_index.h"
#include "../../cpp/index/postings.h"
#include "everlong/base/crc32c.h"
#include "everlong/index/block_table.h"
#include "everlong/index/token_statistics.h"
#include "index_page_mask.h"

namespace everlong::index {
namespace {

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
    EVERLONG_ASSIGN_OR_RETURN(LexicalIndex::Found found, Both(token_ids, k, filter));
    return std::move(found.pages);
  }
  [[nodiscard]] Result<LexicalIndex::Found> Both(std::span<const int32_t> token_ids, int32_t k,
                                                 const PageFilter& filter) const {
    return index_.Search(token_ids, k, filter);
  }
  [[nodiscard]] float WholeScore(std::span<const int32_t> token_ids) const { return index_.WholeScore(token_ids); }
  [[nodiscard]] const BlockTable& table() const { return table_; }
  [[nodiscard]] const TokenStatistics& statistics() const { return statistics_; }
  [[nodiscard]] LexicalIndex& index() { return index_; }

 private:
  BlockTable table_{kPageTokens};
  TokenStatistics statistics_;
  LexicalIndex index_{table_, statistics_};
};

std::unique_ptr<Words> Build(const Pages& pages) {
  auto index = std::make_unique<Words>();
  for (const auto& page : pages) EXPECT_TRUE(index->Add(page).ok());
  return index;
}

// "The bm25() function" of SQLite's FTS5 documentation, in fp64, as a positive number: k1 = 1.2, b = 0.75, IDF =
// log((N - n + 1/2) / (n + 1/2)), at least 1e-6. Only pages that hold one of the ids. With `groups`, of the texts that
// these numbers of pages are together, on average as long as three pages.
std::map<int32_t, double> Bm25(const Pages& pages, const std::set<int32_t>& ids,
                               const std::map<int32_t, std::vector<int32_t>>* groups = nullptr) {
  double mean_length = 0;
  for (const auto& page : pages) mean_length += static_cast<double>(page.size()) / static_cast<double>(pages.size());
  std::map<int32_t, double> scores;
  for (const int32_t id : ids) {
    double holding = 0;
    for (const auto& page : pages) holding += std::ranges::find(page, id) != page.end() ? 1 : 0;
    const double idf = std::max(1e-6, std::log((static_cast<double>(pages.size()) - holding + 0.5) / (holding + 0.5)));
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

void ExpectRanked(const std::vector<Hit>& hits, std::map<int32_t, double> reference, int32_t k,
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
void ExpectBm25(const Words& index, const Pages& pages, const std::vector<int32_t>& query, int32_t k,
                const PageMask& filter) {
  const std::set<int32_t> ids(query.begin(), query.end());
  const auto found = index.Both(query, k, filter);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  ExpectRanked(found->pages, Bm25(pages, ids), k, filter);
  std::map<int32_t, std::vector<int32_t>> groups;
  for (int32_t page = 0; page < static_cast<int32_t>(pages.size()); ++page) {
    groups[page] = {page};
    for (const int32_t beside : {index.table().Previous(page), index.table().Next(page)}) {
      if (beside >= 0 && filter.Allows(beside)) groups[page].push_back(beside);
    }
  }
  ExpectRanked(found->groups, Bm25(pages, ids, &groups), k, filter);
}

// Ids as unevenly spread as words are.
Pages RandomPages(int32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> id(0.02);
  Pages pages(static_cast<size_t>(count));
  for (auto& page : pages) {
    page.resize(random() % 3 == 0 ? 1 + random() % 64 : 64);
    std::ranges::generate(page, [&] { return static_cast<int32_t>(id(random)); });
  }
  return pages;
}

TEST(LexicalIndex, WholeScoreIsThatOfAPageWithEveryIdOnce) {
  Pages pages{{1, 2, 3, 4, 5, 6, 7, 8}};
  for (int32_t page = 1; page < 40; ++page) {
    pages.push_back({page % 9, page % 9, 100, 101, 102 + page % 3, 200 + page, 300 + page, 400 + page});
  }
  const auto index = Build(pages);
  const std::vector<int32_t> query{8, 7, 6, 5, 4, 3, 2, 1, 1};
  const auto hits = index->Search(query, 1, PageMask(40, true));
  ASSERT_TRUE(hits.ok());
  ASSERT_EQ(hits->at(0).page, 0);
  EXPECT_NEAR(index->WholeScore(query), hits->at(0).score, 1e-4);
  const std::vector<int32_t> unseen{8, 7, 6, 5, 4, 3, 2, 1, 999};
  EXPECT_NEAR(index->WholeScore(unseen), hits->at(0).score + std::log(40.5 / 0.5), 1e-4);
  EXPECT_EQ(index->WholeScore({}), 0.0F);
}

TEST(LexicalIndex, WholeScoreLeavesOutWhatSearchLeavesOut) {
  Pages pages;
  constexpr auto kPages = static_cast<int32_t>(2 * LexicalIndex::kMostPostings);
  for (int32_t page = 0; page < kPages; ++page) {
    // Ids 1 and 2 are so common that to look for both costs more than a search may.
    pages.push_back({page % 3 == 0 ? 1 : 10, page % 3 == 1 ? 2 : 11, 100 + page % 1000});
  }
  pages.push_back({1, 2, 99});
  const auto index = Build(pages);
  const std::vector<int32_t> query{1, 2, 99};
  const auto hits = index->Search(query, 1, PageMask(kPages + 1, true));
  ASSERT_TRUE(hits.ok());
  ASSERT_EQ(hits->at(0).page, kPages);
  EXPECT_NEAR(index->WholeScore(query), hits->at(0).score, 1e-3);
  EXPECT_LT(index->WholeScore(query), index->WholeScore(std::vector<int32_t>{99}) + 1);
}

TEST(LexicalIndex, RanksByBm25) {
  for (const int32_t count : {1, 2, 7, 300}) {
    const Pages pages = RandomPages(count, static_cast<uint32_t>(count));
    const auto index = Build(pages);
    std::mt19937 random(5);
    PageMask every(count, true);
    PageMask some(count, true);
    for (int32_t page = 0; page < count; page += 3) some.Set(page, false);
    for (const size_t length : {1U, 3U, 20U}) {
      std::vector<int32_t> query(length);
      std::ranges::generate(query, [&] { return static_cast<int32_t>(random() % 200); });
      for (const int32_t k : {1, 5, 1000}) {
        SCOPED_TRACE(testing::Message() << count << " pages, query of " << length << ", k " << k);
        ExpectBm25(*index, pages, query, k, every);
        ExpectBm25(*index, pages, query, k, some);
      }
    }
  }
}

TEST(LexicalIndex, AnswersBetweenAdds) {
  Pages pages;
  auto index = Build(pages);
  for (const auto& page : RandomPages(40, 3)) {
    pages.push_back(page);
    ASSERT_TRUE(index->Add(page).ok());
    ExpectBm25(*index, pages, {0, 1, 2, 30}, 10, PageMask(40, true));
  }
}

TEST(LexicalIndex, TiesGoToTheOlderPage) {
  const auto index = Build({{9, 9}, {1, 2}, {3, 4}, {2, 1}, {7, 1}, {1, 8}});
  const auto hits = index->Search(std::vector<int32_t>{1}, 3, PageMask(6, true));
  ASSERT_EQ(hits->size(), 3U);
  EXPECT_EQ((*hits)[0].page, 1);
  EXPECT_EQ((*hits)[1].page, 3);
  EXPECT_EQ((*hits)[2].page, 4);
}

TEST(LexicalIndex, FilterIsAppliedBeforeK) {
  Pages pages(50, {1, 1, 1, 2});  // the better match of 1 ...
  pages.push_back({1, 2, 2, 3});  // ... but not allowed
  pages.push_back({5, 5, 5, 5});
  const auto index = Build(pages);
  PageMask filter(52, false);
  filter.Set(50, true);
  filter.Set(51, true);
  const auto hits = index->Search(std::vector<int32_t>{1}, 1, filter);
  ASSERT_EQ(hits->size(), 1U);
  EXPECT_EQ(hits->front().page, 50);
  EXPECT_TRUE(index->Search(std::vector<int32_t>{1}, 1, PageMask(52, false))->empty());
  EXPECT_TRUE(index->Search(std::vector<int32_t>{1}, 1, PageMask())->empty());
}

TEST(LexicalIndex, NoKnownIdNoHits) {
  const auto index = Build({{1, 2}, {3}});
  EXPECT_TRUE(index->Search(std::vector<int32_t>{4, 12, 33}, 5, PageMask(2, true))->empty());
  EXPECT_TRUE(index->Search({}, 5, PageMask(2, true))->empty());
  EXPECT_TRUE(Build({})->Search(std::vector<int32_t>{1}, 5, PageMask())->empty());
}

TEST(LexicalIndex, RefusesBadArguments) {
  const auto index = Build({{1, 2}});
  const std::vector<int32_t> negative{1, -2};
  EXPECT_EQ(index->Search(std::vector<int32_t>{1}, 0, PageMask(1, true)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->Search(negative, 1, PageMask(1, true)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(index->Add(negative).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(index->Add(std::vector<int32_t>{3}).ok());
  EXPECT_EQ(index->Search(std::vector<int32_t>{3}, 1, PageMask(9, true))->front().page, 1);  // no ordinal was given
}

TEST(LexicalIndex, LeavesOutCommonIdsOfALargeArchive) {
  constexpr auto kPages = static_cast<size_t>(LexicalIndex::kMostPostings) + 1'000;
  Pages pages(kPages, {1, 7});
  for (const size_t page : {size_t{100}, size_t{5'000}, kPages - 1}) pages[page].push_back(2);
  const auto index = Build(pages);
  const PageMask every(static_cast<int32_t>(kPages), true);
  const auto rare = index->Search(std::vector<int32_t>{1, 2, 7}, 10, every);
  ASSERT_EQ(rare->size(), 3U);
  EXPECT_EQ((*rare)[0].page, 100);
  EXPECT_EQ((*rare)[2].page, static_cast<int32_t>(kPages) - 1);
  // But an id that stands alone is asked for, however common.
  EXPECT_EQ(index->Search(std::vector<int32_t>{1}, 10, every)->size(), 10U);
}

TEST(LexicalIndex, TakesLongQuestions) {
  Pages pages;
  for (int32_t page = 0; page < 300; ++page) pages.push_back({page, page, 1'000'000 + page % 10});
  const auto index = Build(pages);
  std::vector<int32_t> query(5'000);
  for (size_t i = 0; i < query.size(); ++i) query[i] = static_cast<int32_t>(i);
  const auto hits = index->Search(query, 1'000, PageMask(300, true));
  ASSERT_TRUE(hits.ok());
  EXPECT_GE(hits->size(), 60U);
}

TEST(LexicalIndex, SearchesRunBesideEachOther) {
  const Pages pages = RandomPages(200, 8);
  const auto index = Build(pages);
  std::vector<std::thread> threads;
  for (int32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int32_t id = 0; id < 20; ++id) {
        ExpectBm25(*index, pages, {id, id * 3 + thread}, 10, PageMask(200, true));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LexicalIndex, ARemovedPageLeavesNoTrace) {
  std::mt19937_64 random(5);
  Pages pages(40);
  for (auto& page : pages) {
    for (size_t i = 0; i < 5 + random() % 30; ++i) page.push_back(static_cast<int32_t>(random() % 60));
  }
  const std::set<int32_t> gone = {0, 7, 8, 39};
  const auto index = Build(pages);
  Pages kept;
  std::vector<int32_t> ordinals;  // of the kept pages
  for (int32_t page = 0; page < 40; ++page) {
    if (gone.contains(page)) {
      index->Remove(page, pages[static_cast<size_t>(page)]);
    } else {
      kept.push_back(pages[static_cast<size_t>(page)]);
      ordinals.push_back(page);
    }
  }
  const auto reference = Build(kept);
  for (int32_t id = 0; id < 60; ++id) {
    const std::vector<int32_t> query = {id, (id * 7) % 60};
    const auto found = index->Search(query, 40, PageMask(40, true));
    const auto expected = reference->Search(query, 40, PageMask(36, true));
    ASSERT_EQ(found->size(), expected->size());
    for (size_t i = 0; i < found->size(); ++i) {
      EXPECT_EQ((*found)[i].page, ordinals[static_cast<size_t>((*expected)[i].page)]);
      EXPECT_FLOAT_EQ((*found)[i].score, (*expected)[i].score);
    }
  }
  ASSERT_TRUE(index->Add(pages[0]).ok());
  EXPECT_EQ(index->Search(pages[0], 1, PageMask(41, true))->front().page, 40);
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
    for (const int32_t page : table_.LiveOrdinals()) filter.Set(page, every || random_() % 4 != 0);
    return filter;
  }

  void Expect(const std::vector<int32_t>& query, int32_t k, const PageMask& filter) const {
    const auto found = index_.Search(query, k, filter);
    ASSERT_TRUE(found.ok());
    ExpectRanked(found->pages, Reference(query, filter, false), k, filter);
    ExpectRanked(found->groups, Reference(query, filter, true), k, filter);
  }

  [[nodiscard]] const BlockTable& table() const { return table_; }
  [[nodiscard]] const TokenStatistics& statistics() const { return statistics_; }
  [[nodiscard]] const LexicalIndex& index() const { return index_; }
  [[nodiscard]] const Pages& pages() const { return pages_; }

 private:
  [[nodiscard]] std::map<int32_t, double> Reference(const std::vector<int32_t>& query, const PageMask& filter,
                                                    bool groups) const {
    double live = 0;
    double tokens = 0;
    for (const auto& page : pages_) {
      live += page.empty() ? 0 : 1;
      tokens += static_cast<double>(page.size());
    }
    std::map<int32_t, double> scores;
    for (const int32_t id : std::set<int32_t>(query.begin(), query.end())) {
      double holding = 0;
      for (const auto& page : pages_) holding += std::ranges::count(page, id) > 0 ? 1 : 0;
      const double idf = std::max(1e-6, std::log((live - holding + 0.5) / (holding + 0.5)));
      for (int32_t page = 0; page < static_cast<int32_t>(pages_.size()); ++page) {
        if (!filter.Allows(page)) continue;
        double frequency = 0;
        double length = 0;
        for (const int32_t of :
             groups ? std::set<int32_t>{page, table_.Previous(page), table_.Next(page)} : std::set<int32_t>{page}) {
          if (of < 0 || !filter.Allows(of)) continue;
          frequency += static_cast<double>(std::ranges::count(pages_[static_cast<size_t>(of)], id));
          length += static_cast<double>(pages_[static_cast<size_t>(of)].size());
        }
        const double relative = length / (tokens / live) / (groups ? 3 : 1);
        if (frequency > 0) {
          scores[page] += idf * frequency * (1.2 + 1) / (frequency + 1.2 * (1 - 0.75 + 0.75 * relative));
        }
      }
    }
    return scores;
  }

  std::mt19937 random_;
  BlockTable table_{kPageTokens};
  TokenStatistics statistics_;
  LexicalIndex index_{table_, statistics_};
  std::map<int64_t, int64_t> ends_;
  int64_t last_id_ = 0;
  Pages pages_;
};

TEST(LexicalIndex, GroupsAreAPageWithItsNeighboursAsOneText) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Library library(seed);
    for (int block = 0; block < 60; ++block) {
      library.AddBlock();
      if (block % 3 == 2) library.ForgetSome();
      if (block % 6 != 5) continue;
      for (const bool every : {true, false}) {
        library.Expect(library.Question(), 1000, library.Filter(every));
        library.Expect(library.Question(), 5, library.Filter(every));
      }
    }
  }
}

TEST(LexicalIndex, WhatWasSavedAnswersAsItDid) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("everlong_lexical_" + std::to_string(getpid()));
  for (uint32_t seed = 50; seed < 56; ++seed) {
    SCOPED_TRACE(seed);
    Library library(seed);
    for (int block = 0; block < 40; ++block) {
      library.AddBlock();
      if (block % 2 == 1) library.ForgetSome();
    }
    const std::vector<int32_t> kept = library.table().LiveOrdinals();
    ASSERT_TRUE(library.index().Save(file, kept).ok());
    // The same pages, of which every seventh is gone since: as it is here without them.
    std::vector<SavedPage> pages;
    TokenStatistics statistics;
    Pages here(library.pages().size());
    for (size_t at = 0; at < kept.size(); ++at) {
      const std::vector<int32_t>& ids = library.pages()[static_cast<size_t>(kept[at])];
      pages.push_back({static_cast<int32_t>(ids.size()), at % 7 == 3 ? -1 : kept[at]});
      if (at % 7 == 3) continue;
      statistics.AddPage(ids);
      here[static_cast<size_t>(kept[at])] = ids;
    }
    LexicalIndex loaded(library.table(), statistics);
    ASSERT_TRUE(loaded.Load(file, pages).ok());
    LexicalIndex expected(library.table(), statistics);
    for (int32_t page = 0; page < static_cast<int32_t>(here.size()); ++page) {
      if (!here[static_cast<size_t>(page)].empty()) {
        ASSERT_TRUE(expected.Add(page, here[static_cast<size_t>(page)]).ok());
      }
    }
    PageMask filter(library.table().pages(), false);
    for (const SavedPage& page : pages) {
      if (page.ordinal >= 0) filter.Set(page.ordinal, true);
    }
    for (int i = 0; i < 20; ++i) {
      const std::vector<int32_t> query = library.Question();
      const auto found = loaded.Search(query, 50, filter).value();
      const auto wanted = expected.Search(query, 50, filter).value();
      const auto same = [](const Hit& a, const Hit& b) { return a.page == b.page && a.score == b.score; };
      EXPECT_TRUE(std::ranges::equal(found.pages, wanted.pages, same));
      EXPECT_TRUE(std::ranges::equal(found.groups, wanted.groups, same));
      EXPECT_EQ(loaded.WholeScore(query), expected.WholeScore(query));
    }
    TokenStatistics counted;
    loaded.CountInto(counted);
    std::vector<int32_t> every(200);
    std::iota(every.begin(), every.end(), 0);
    EXPECT_EQ(counted.DocumentFrequencies(every).of_ids, statistics.DocumentFrequencies(every).of_ids);
    EXPECT_EQ(counted.pages(), statistics.pages());

    // A list of other pages.
    std::vector<SavedPage> other = pages;
    ++other[2].tokens;
    EXPECT_EQ(LexicalIndex(library.table(), statistics).Load(file, other).code(), StatusCode::kCorrupt);
    other.pop_back();
    EXPECT_EQ(LexicalIndex(library.table(), statistics).Load(file, other).code(), StatusCode::kCorrupt);
  }
  std::filesystem::remove(file);
}

// What a right checksum does not show: every byte of a file as every other number.
TEST(LexicalIndex, AFileThatCannotBeIsCorrupt) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("everlong_lexical_bad_" + std::to_string(getpid()));
  const auto words = Build({{1, 1, 300}, {7}, {1, 90'000, 90'000}});
  ASSERT_TRUE(words->index().Save(file, std::vector<int32_t>{0, 1, 2}).ok());
  const int memory = ::memfd_create("index", 0);
  ASSERT_GE(memory, 0);
  const std::vector<SavedPage> pages{{3, 0}, {1, 1}, {3, 2}};
  std::string good;
  {
    std::ifstream in(file, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::filesystem::remove(file);
  const auto load = [&](std::string bytes) {
    const size_t body = bytes.size() - sizeof(uint32_t);
    const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)).first(body));
    std::memcpy(bytes.data() + body, &crc, sizeof crc);
    EXPECT_EQ(::ftruncate(memory, 0), 0);
    EXPECT_EQ(::pwrite(memory, bytes.data(), bytes.size(), 0), std::ssize(bytes));
    TokenStatistics statistics;
    LexicalIndex loaded(words->table(), statistics);
    const Status status = loaded.Load("/proc/self/fd/" + std::to_string(memory), pages);
    if (!status.ok()) return status.code();
    loaded.CountInto(statistics);
    EXPECT_EQ(statistics.pages(), 3);
    EXPECT_TRUE(loaded.Search(std::vector<int32_t>{1, 7, 300}, 5, PageMask(3, true)).ok());
    return StatusCode::kOk;
  };
  EXPECT_EQ(load(good), StatusCode::kOk);
  for (size_t at = 0; at + sizeof(uint32_t) < good.size(); ++at) {
    for (int bits = 1; bits < 256; ++bits) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ bits);
      const StatusCode code = load(bad);
      // Another id in the place of one is nothing that a file could show.
      EXPECT_TRUE(code == StatusCode::kCorrupt || code == StatusCode::kOk) << at << " " << bits;
    }
  }
  for (size_t size = good.size() - 1; size > sizeof(uint32_t); --size) {
    EXPECT_EQ(load(good.substr(0, size)), StatusCode::kCorrupt) << size;
  }
  EXPECT_EQ(load(good + "more"), StatusCode::kCorrupt);
  ::close(memory);
}

// One adds and removes; what others find of the pages that are there is what it was.
TEST(LexicalIndex, SearchesRunBesideTheOneThatAddsAndRemoves) {
  Postings postings;
  constexpr int32_t kPages = 300;
  for (int32_t page = 0; page < kPages; ++page) postings.Add(page, std::vector<int32_t>{1, 1, page % 7 + 10, page % 2});
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!done) {
        for (const int32_t id : {1, 12}) {
          const Postings::Found found = postings.Find(std::span(&id, 1));
          std::vector<Posting> seen;
          // Of these only pages of odd numbers are removed.
          found.lists[0]->ForEach({0, kPages}, [&](const Posting& posting) {
            if (posting.page % 2 == 0) seen.push_back(posting);
          });
          std::vector<Posting> expected;
          for (int32_t page = 0; page < kPages; page += 2) {
            if (id == 1) expected.push_back({page, 2});
            if (id == 12 && page % 7 == 2) expected.push_back({page, 1});
          }
          EXPECT_EQ(seen, expected);
        }
      }
    });
  }
  for (int32_t page = 0; page < kPages; ++page) {
    postings.Add(kPages + page, std::vector<int32_t>{1, 12, page});
    if (page % 2 == 1) postings.Remove(page, std::vector<int32_t>{1, 1, page % 7 + 10, page % 2});
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

// Nothing says where a page was, whatever order pages go in.
TEST(PostingList, WhatWasRemovedIsNowhere) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    PostingList list;
    std::map<int32_t, int32_t> reference;
    std::vector<int32_t> pages;
    for (int32_t page = static_cast<int32_t>(random() % 3); page < 60; page += 1 + static_cast<int32_t>(random() % 3)) {
      list.Add({page, 1 + page % 5});
      reference[page] = 1 + page % 5;
      pages.push_back(page);
    }
    std::ranges::shuffle(pages, random);
    while (!pages.empty()) {
      list.Remove(pages.back());
      list.Remove(pages.back());  // is not here any more
      reference.erase(pages.back());
      pages.pop_back();
      std::map<int32_t, int32_t> found;
      list.ForEach({0, 60}, [&](const Posting& posting) { found[posting.page] = posting.count; });
      EXPECT_EQ(found, reference);
      EXPECT_EQ(list.live(), std::ssize(reference));
      const auto first = static_cast<int32_t>(random() % 60);
      std::vector<int32_t> in_range;
      list.ForEach({first, first + 9}, [&](const Posting& posting) { in_range.push_back(posting.page); });
      std::vector<int32_t> expected;
      for (const auto& [page, count] : reference) {
        if (page >= first && page < first + 9) expected.push_back(page);
      }
      EXPECT_EQ(in_range, expected);
    }
  }
}

}  // namespace
}  // namespace everlong::index
