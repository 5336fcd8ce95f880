#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "index_lexical_case.h"

namespace everlong::index {
namespace {

// What a search did with one number for every page there is: the same sums, in the same order.
LexicalIndex::Found OfEveryPage(const Library& library, const std::vector<int32_t>& query, const PageMask& filter,
                                size_t k) {
  const auto count = static_cast<int32_t>(library.pages().size());
  const auto in_page = [&](int32_t page, int32_t id) {
    return page < 0 ? 0 : static_cast<int32_t>(std::ranges::count(library.pages()[static_cast<size_t>(page)], id));
  };
  const auto length = [&](int32_t page) {
    return page < 0 ? 0 : std::ssize(library.pages()[static_cast<size_t>(page)]);
  };
  const auto allowed = [&](int32_t page) { return filter.Allows(page) ? page : -1; };
  std::set<std::pair<int64_t, int32_t>> ids;  // rarest first
  for (const int32_t id : query) ids.emplace(library.statistics().DocumentFrequency(id), id);
  int64_t tokens = 0;
  int64_t live = 0;
  for (int32_t page = 0; page < count; ++page) {
    tokens += length(page);
    live += length(page) > 0 ? 1 : 0;
  }
  const double average = static_cast<double>(tokens) / static_cast<double>(live);
  const auto weight = [](double frequency, double of_average) {
    return frequency * (1.2 + 1) / (frequency + 1.2 * (1 - 0.75 + 0.75 * of_average));
  };
  LexicalIndex::Found found;
  for (int32_t page = 0; page < count; ++page) {
    if (!filter.Allows(page)) continue;
    const int32_t previous = allowed(library.table().Previous(page));
    const int32_t next = allowed(library.table().Next(page));
    double score = 0;
    double group_score = 0;
    for (const auto& [frequency, id] : ids) {
      if (frequency == 0) continue;
      const auto with = static_cast<double>(frequency);
      const double idf = std::max(std::log((static_cast<double>(live) - with + 0.5) / (with + 0.5)), 1e-6);
      const int32_t own = in_page(page, id);
      const int32_t group = in_page(previous, id) + own + in_page(next, id);
      const auto group_length = static_cast<double>(length(previous) + length(page) + length(next));
      if (own > 0) score += idf * weight(own, static_cast<double>(length(page)) / average);
      if (group > 0) group_score += idf * weight(group, group_length / (3 * average));
    }
    if (score > 0) found.pages.push_back({page, static_cast<float>(score)});
    if (group_score > 0) found.groups.push_back({page, static_cast<float>(group_score)});
  }
  for (std::vector<Hit>* const hits : {&found.pages, &found.groups}) {
    std::ranges::stable_sort(*hits, std::ranges::greater(), &Hit::score);
    hits->resize(std::min(k, hits->size()));
  }
  return found;
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
        ExpectBm25(index->index(), index->table(), pages, query, k, every);
        ExpectBm25(index->index(), index->table(), pages, query, k, some);
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
    ExpectBm25(index->index(), index->table(), pages, {0, 1, 2, 30}, 10, PageMask(40, true));
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
        ExpectBm25(index->index(), index->table(), pages, {id, id * 3 + thread}, 10, PageMask(200, true));
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

TEST(LexicalIndex, ScoresAreThoseOfAPassOverEveryPageBitForBit) {
  for (uint32_t seed = 20; seed < 32; ++seed) {
    Library library(seed);
    for (int block = 0; block < 120; ++block) {
      library.AddBlock();
      if (block % 3 == 2) library.ForgetSome();
      if (block % 10 != 9) continue;
      for (const bool every : {true, false}) {
        for (const size_t k : {size_t{3}, size_t{1000}}) {
          SCOPED_TRACE(testing::Message() << "seed " << seed << ", block " << block << ", k " << k);
          const std::vector<int32_t> query = library.Question();
          const PageMask filter = library.Filter(every);
          const auto found = library.index().Search(query, static_cast<int32_t>(k), filter);
          ASSERT_TRUE(found.ok());
          const LexicalIndex::Found expected = OfEveryPage(library, query, filter, k);
          EXPECT_EQ(found->pages, expected.pages);
          EXPECT_EQ(found->groups, expected.groups);
        }
      }
    }
  }
}

}  // namespace
}  // namespace everlong::index
