// Page groups of fused hits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "everlong/index/block_table.h"
#include "everlong/index/fusion.h"
#include "index_page_mask.h"

namespace everlong::index {
namespace {

constexpr int32_t kPageTokens = 64;

// Pages of 64 tokens of one stream and source, one block.
BlockTable Book(int32_t pages) {
  BlockTable table(kPageTokens);
  table.Append({.id = 1, .stream = 1, .span = {0, int64_t{pages} * kPageTokens}, .source = "book", .tags = {}});
  return table;
}

std::vector<std::vector<int32_t>> PagesOf(const std::vector<PageGroup>& groups) {
  std::vector<std::vector<int32_t>> pages;
  for (const PageGroup& group : groups) pages.push_back(group.pages);
  return pages;
}

using Grouping = std::vector<std::vector<int32_t>>;

constexpr IndexParts kByHeads{IndexPart::kHeads};
constexpr IndexParts kByWords{IndexPart::kLexical};
constexpr IndexParts kByBoth{IndexPart::kHeads, IndexPart::kLexical};

TEST(MakeGroups, NeighboursMergeAndBestComesFirst) {
  const BlockTable book = Book(40);
  const PageMask every(40, true);
  const std::vector<FusedHit> hits{
      {20, 0.9F, kByHeads}, {5, 0.8F, kByWords}, {23, 0.7F, kByWords}, {39, 0.6F, kByHeads}};
  const auto groups = MakeGroups(hits, book, every, 1, 10, 10'000);
  EXPECT_EQ(PagesOf(groups), (Grouping{{19, 20, 21, 22, 23, 24}, {4, 5, 6}, {38, 39}}));
  EXPECT_EQ(groups[0].span, (TokenSpan{19 * 64, 25 * 64}));
  EXPECT_EQ(groups[0].stream, 1);
  EXPECT_EQ(groups[0].score, 0.9F);
  EXPECT_EQ(groups[0].found_by, kByBoth);
  EXPECT_EQ(groups[1].found_by, kByWords);
  EXPECT_EQ(PagesOf(MakeGroups(hits, book, every, 0, 10, 10'000)), (Grouping{{20}, {5}, {23}, {39}}));
}

TEST(MakeGroups, EveryPageKeepsItsOwnScore) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  // 21 comes when no group is left, and is a page of one all the same.
  const std::vector<FusedHit> hits{
      {10, 0.9F, kByHeads}, {20, 0.8F, kByHeads}, {11, 0.7F, kByHeads}, {30, 0.6F, kByHeads}, {21, 0.5F, kByHeads}};
  const auto groups = MakeGroups(hits, Book(40), PageMask(40, true), 1, 2, 10'000);
  ASSERT_EQ(PagesOf(groups), (Grouping{{9, 10, 11, 12}, {19, 20, 21}}));
  EXPECT_EQ(groups[0].scores, (std::vector<float>{kNone, 0.9F, 0.7F, kNone}));
  EXPECT_EQ(groups[1].scores, (std::vector<float>{kNone, 0.8F, 0.5F}));
  const auto alone = MakeGroups(hits, Book(40), PageMask(40, true), 0, 2, 10'000);
  ASSERT_EQ(PagesOf(alone), (Grouping{{10, 11}, {20}}));
  EXPECT_EQ(alone[0].scores, (std::vector<float>{0.9F, 0.7F}));
}

TEST(MakeGroups, AHitFarBelowTheGroupThatItTouchesAddsNothing) {
  const BlockTable book = Book(40);
  const PageMask every(40, true);
  // A table: what else is named shares a digit or two with the question.
  const std::vector<FusedHit> table{
      {10, 5.6F, kByHeads}, {11, 0.7F, kByWords}, {9, 0.6F, kByHeads}, {13, 0.5F, kByHeads}, {7, 0.4F, kByHeads}};
  EXPECT_EQ(PagesOf(MakeGroups(table, book, every, 1, 4, 10'000)), (Grouping{{9, 10, 11}}));
  EXPECT_EQ(PagesOf(MakeGroups(table, book, every, 0, 4, 10'000)), (Grouping{{10}, {13}, {7}}));
  EXPECT_EQ(PagesOf(MakeGroups(table, book, every, 2, 4, 10'000)), (Grouping{{8, 9, 10, 11, 12}}));
  EXPECT_EQ(MakeGroups(table, book, every, 1, 4, 10'000)[0].scores, (std::vector<float>{0.6F, 5.6F, 0.7F}));
  EXPECT_EQ(MakeGroups(table, book, every, 1, 4, 10'000)[0].found_by, kByHeads);
  // A statement that runs on beyond the neighbours of its first page.
  const std::vector<FusedHit> statement{{10, 13.5F, kByHeads}, {12, 8.4F, kByHeads}, {14, 4.4F, kByHeads}};
  EXPECT_EQ(PagesOf(MakeGroups(statement, book, every, 1, 4, 10'000)), (Grouping{{9, 10, 11, 12, 13}}));
  // The room that it leaves is another group's; two groups that it lies between stay two.
  const std::vector<FusedHit> apart{
      {10, 9.0F, kByHeads}, {14, 8.0F, kByHeads}, {12, 0.5F, kByHeads}, {30, 0.4F, kByHeads}};
  EXPECT_EQ(PagesOf(MakeGroups(apart, book, every, 1, 4, 8 * 64)), (Grouping{{9, 10, 11}, {13, 14, 15}, {29, 30}}));
  // Nothing stands out; a cosine may be below 0.
  const std::vector<FusedHit> alike{{10, 0.7F, kByHeads}, {11, 0.6F, kByHeads}, {12, 0.5F, kByHeads}};
  EXPECT_EQ(PagesOf(MakeGroups(alike, book, every, 1, 4, 10'000)), (Grouping{{9, 10, 11, 12, 13}}));
  const std::vector<FusedHit> below{{10, -0.1F, kByHeads}, {11, -0.1F, kByHeads}, {12, -0.2F, kByHeads}};
  EXPECT_EQ(PagesOf(MakeGroups(below, book, every, 0, 4, 10'000)), (Grouping{{10, 11}}));
}

TEST(MakeGroups, AHitMayJoinTwoGroups) {
  const std::vector<FusedHit> hits{
      {10, 0.9F, kByHeads}, {30, 0.8F, kByHeads}, {14, 0.7F, kByHeads}, {12, 0.6F, kByWords}};
  EXPECT_EQ(PagesOf(MakeGroups(hits, Book(40), PageMask(40, true), 0, 10, 10'000)), (Grouping{{10}, {30}, {14}, {12}}));
  const auto groups = MakeGroups(hits, Book(40), PageMask(40, true), 1, 10, 10'000);
  EXPECT_EQ(PagesOf(groups), (Grouping{{9, 10, 11, 12, 13, 14, 15}, {29, 30, 31}}));
  EXPECT_EQ(groups[0].found_by, kByBoth);
}

TEST(MakeGroups, EndsAtTheFirstHitThatNeedsOneGroupTooMany) {
  const std::vector<FusedHit> hits{
      {10, 0.9F, kByHeads}, {11, 0.8F, kByHeads}, {30, 0.7F, kByHeads}, {13, 0.6F, kByHeads}};
  EXPECT_EQ(PagesOf(MakeGroups(hits, Book(40), PageMask(40, true), 1, 1, 10'000)), (Grouping{{9, 10, 11, 12}}));
  EXPECT_TRUE(MakeGroups(hits, Book(40), PageMask(40, true), 1, 0, 10'000).empty());
}

TEST(MakeGroups, AHitInsideTheBestGroupWidensItStillWhenAllGroupsAreTaken) {
  const BlockTable book = Book(40);
  const PageMask every(40, true);
  // 13 continues the group of 10 but is no page of it when its turn comes; 11 is one.
  const std::vector<FusedHit> hits{
      {10, 0.9F, kByHeads}, {20, 0.8F, kByHeads}, {30, 0.7F, kByHeads}, {13, 0.6F, kByHeads}, {11, 0.5F, kByWords}};
  const auto groups = MakeGroups(hits, book, every, 1, 2, 10'000);
  EXPECT_EQ(PagesOf(groups), (Grouping{{9, 10, 11, 12}, {19, 20, 21}}));
  EXPECT_EQ(groups[0].found_by, kByBoth);
  std::vector<FusedHit> second = hits;
  second.back().page = 21;
  EXPECT_EQ(PagesOf(MakeGroups(second, book, every, 1, 2, 10'000)), (Grouping{{9, 10, 11}, {19, 20, 21}}))
      << "only the best group";
  EXPECT_EQ(PagesOf(MakeGroups(hits, book, every, 1, 2, 6 * 64)), (Grouping{{9, 10, 11}, {19, 20, 21}}))
      << "the budget holds";
}

TEST(MakeGroups, BudgetCutsToTheBestPagesSurroundings) {
  const std::vector<FusedHit> hits{{10, 0.9F, kByHeads}, {30, 0.8F, kByHeads}};
  const BlockTable book = Book(40);
  const PageMask every(40, true);
  EXPECT_TRUE(MakeGroups(hits, book, every, 2, 4, 63).empty());
  EXPECT_EQ(PagesOf(MakeGroups(hits, book, every, 2, 4, 64)), (Grouping{{10}}));
  EXPECT_EQ(PagesOf(MakeGroups(hits, book, every, 2, 4, 128)), (Grouping{{9, 10}}));
  EXPECT_EQ(PagesOf(MakeGroups(hits, book, every, 2, 4, 5 * 64)), (Grouping{{8, 9, 10, 11, 12}}));
  EXPECT_EQ(PagesOf(MakeGroups(hits, book, every, 2, 4, 7 * 64)), (Grouping{{8, 9, 10, 11, 12}, {29, 30}}));
}

TEST(MakeGroups, NothingIsTakenThatMayNotBe) {
  BlockTable table(kPageTokens);
  for (int64_t block = 0; block < 4; ++block) {  // of three pages each
    const int64_t begin = block * 3 * kPageTokens;
    table.Append({.id = block,
                  .stream = 1,
                  .span = {begin, begin + 3 * kPageTokens},
                  .source = block < 2 ? "a" : "b",
                  .tags = {}});
  }
  table.Forget(0);
  PageMask filter(12, true);
  filter.Set(8, false);
  const std::vector<FusedHit> hits{
      {5, 0.9F, kByHeads}, {2, 0.8F, kByHeads}, {8, 0.7F, kByHeads}, {10, 0.6F, kByHeads}, {3, 0.5F, kByHeads}};
  EXPECT_EQ(PagesOf(MakeGroups(hits, table, filter, 2, 9, 10'000)), (Grouping{{3, 4, 5}, {9, 10, 11}}));
}

// A library: streams written by turns, sources that change, holes, short pages, forgotten blocks.
BlockTable RandomLibrary(std::mt19937& random) {
  BlockTable table(kPageTokens);
  std::map<int64_t, int64_t> ends;
  std::map<int64_t, int32_t> sources;
  for (int64_t block = 0; block < 25; ++block) {
    const int64_t stream = 1 + random() % 3;
    int64_t& end = ends[stream];
    if (random() % 8 == 0) end += 64;
    if (random() % 4 == 0) ++sources[stream];
    const auto pages = static_cast<int64_t>(1 + random() % 6);
    const int64_t tokens = (pages - 1) * kPageTokens + static_cast<int64_t>(1 + random() % kPageTokens);
    table.Append({.id = block,
                  .stream = stream,
                  .span = {end, end + tokens},
                  .source = std::to_string(sources[stream]),
                  .tags = {}});
    end += tokens;
  }
  for (int64_t block = 0; block < 25; ++block) {
    if (random() % 8 == 0) table.Forget(block);
  }
  return table;
}

bool Follows(const PageEntry& page, const PageEntry& before) {
  return page.stream == before.stream && page.source == before.source && page.span.begin == before.span.end;
}

// What a run of pages from `page` in one direction may take, by search through all pages.
int32_t Step(const BlockTable& table, const PageMask& filter, int32_t page, bool forward) {
  for (int32_t other = 0; other < table.pages(); ++other) {
    if (table.page(other).forgotten || !filter.Allows(other)) continue;
    const bool adjacent =
        forward ? Follows(table.page(other), table.page(page)) : Follows(table.page(page), table.page(other));
    if (adjacent) return other;
  }
  return -1;
}

bool FarBelow(float best, float score) { return score < best / 3; }

// The pages of the first `count` hits with their neighbours, as runs; each with the rank of its best hit.
std::map<size_t, std::set<int32_t>> Runs(const BlockTable& table, const PageMask& filter,
                                         const std::vector<FusedHit>& hits, size_t count, int32_t neighbours) {
  std::set<int32_t> taken;
  for (size_t i = 0; i < count; ++i) {
    if (!filter.Allows(hits[i].page) || table.page(hits[i].page).forgotten) continue;
    taken.insert(hits[i].page);
    for (const bool forward : {false, true}) {
      int32_t page = hits[i].page;
      for (int32_t distance = 0; distance < neighbours && page >= 0; ++distance) {
        page = Step(table, filter, page, forward);
        if (page >= 0) taken.insert(page);
      }
    }
  }
  std::map<size_t, std::set<int32_t>> runs;
  while (!taken.empty()) {
    int32_t page = *taken.begin();
    for (int32_t before = page; before >= 0 && taken.contains(before);) {
      page = before;
      before = Step(table, filter, before, false);
    }
    std::set<int32_t> run;
    while (page >= 0 && taken.erase(page) == 1) {
      run.insert(page);
      page = Step(table, filter, page, true);
    }
    size_t best = 0;
    while (!run.contains(hits[best].page)) ++best;
    runs[best] = run;
  }
  return runs;
}

struct Question {
  BlockTable table{kPageTokens};
  PageMask filter;
  std::vector<FusedHit> hits;
  int32_t neighbours = 0;
};

Question RandomQuestion(uint32_t seed) {
  std::mt19937 random(seed);
  Question question;
  question.table = RandomLibrary(random);
  const int32_t pages = question.table.pages();
  question.filter = PageMask(pages, true);
  for (int32_t page = 0; page < pages; ++page) question.filter.Set(page, random() % 12 != 0);
  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (int32_t page = 0; page < pages; ++page) order[static_cast<size_t>(page)] = page;
  std::ranges::shuffle(order, random);
  order.resize(std::min<size_t>(order.size(), 1 + random() % 20));
  float score = 1.0F;
  for (const int32_t page : order)
    question.hits.push_back({page, score *= 0.9F, {{static_cast<uint8_t>(random() % 4)}}});
  question.neighbours = static_cast<int32_t>(random() % 4);
  return question;
}

TEST(MakeGroups, IsTheRunsOfTheHitsWithinTheNumberOfGroups) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Question question = RandomQuestion(seed);
    const size_t max_groups = 1 + seed % 7;
    // The longest beginning of the hits that never makes more than max_groups runs, and after it those inside the best
    // run; without those far below the best hit of the run that they would be part of.
    std::vector<FusedHit> served;
    std::map<size_t, std::set<int32_t>> expected;
    bool full = false;
    for (const FusedHit& hit : question.hits) {
      if (full && !expected.begin()->second.contains(hit.page)) continue;
      served.push_back(hit);
      auto runs = Runs(question.table, question.filter, served, served.size(), question.neighbours);
      const auto own = std::ranges::find_if(runs, [&hit](const auto& run) { return run.second.contains(hit.page); });
      if (runs.size() > max_groups) {
        full = true;
        served.pop_back();
      } else if (own != runs.end() && FarBelow(served[own->first].score, hit.score)) {
        served.pop_back();
      } else {
        expected = std::move(runs);
      }
    }
    const auto groups = MakeGroups(question.hits, question.table, question.filter, question.neighbours,
                                   static_cast<int32_t>(max_groups), 1'000'000);
    ASSERT_EQ(groups.size(), expected.size());
    size_t at = 0;
    for (const auto& [best, run] : expected) {
      const PageGroup& group = groups[at++];
      EXPECT_EQ(std::set<int32_t>(group.pages.begin(), group.pages.end()), run);
      EXPECT_EQ(group.pages.size(), run.size());
      EXPECT_EQ(group.score, served[best].score);
    }
  }
}

// Whether a hit has far less than a group's score that it would touch, if there were room for all its surroundings.
bool IsFarBelowANeighbour(const Question& question, const std::vector<PageGroup>& groups, const FusedHit& hit) {
  const auto runs = Runs(question.table, question.filter, {hit}, 1, question.neighbours + 1);
  return std::ranges::any_of(groups, [&](const PageGroup& group) {
    return FarBelow(group.score, hit.score) &&
           std::ranges::any_of(group.pages, [&runs](int32_t page) { return runs.at(0).contains(page); });
  });
}

TEST(MakeGroups, KeepsItsPromisesUnderABudget) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Question question = RandomQuestion(seed);
    const BlockTable& table = question.table;
    const int64_t budget = 1 + (seed * 37) % 900;
    const auto groups = MakeGroups(question.hits, table, question.filter, question.neighbours, 1000, budget);
    std::map<int32_t, size_t> group_of;
    int64_t used = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const PageGroup& group = groups[g];
      ASSERT_FALSE(group.pages.empty());
      EXPECT_TRUE(g == 0 || group.score < groups[g - 1].score);
      EXPECT_EQ(group.span.begin, table.page(group.pages.front()).span.begin);
      EXPECT_EQ(group.span.end, table.page(group.pages.back()).span.end);
      used += group.span.size();
      for (size_t i = 0; i < group.pages.size(); ++i) {
        const PageEntry& page = table.page(group.pages[i]);
        EXPECT_TRUE(group_of.emplace(group.pages[i], g).second) << "a page is in two groups";
        EXPECT_TRUE(question.filter.Allows(group.pages[i]));
        EXPECT_FALSE(page.forgotten);
        EXPECT_EQ(page.stream, group.stream);
        EXPECT_TRUE(i == 0 || Follows(page, table.page(group.pages[i - 1])));
      }
    }
    EXPECT_LE(used, budget);
    std::vector<bool> scored(groups.size(), false);
    for (const FusedHit& hit : question.hits) {
      const PageEntry& page = table.page(hit.page);
      if (page.forgotten || !question.filter.Allows(hit.page)) continue;
      const auto found = group_of.find(hit.page);
      if (found == group_of.end()) {
        EXPECT_TRUE(page.span.size() > budget - used || IsFarBelowANeighbour(question, groups, hit))
            << "a hit was left out that fits";
      } else if (!scored[found->second]) {
        scored[found->second] = true;
        EXPECT_EQ(groups[found->second].score, hit.score);
      }
    }
    for (const auto& [page, g] : group_of) {
      const auto next = group_of.find(Step(table, question.filter, page, true));
      EXPECT_TRUE(next == group_of.end() || next->second == g) << "two groups touch";
    }
  }
}

}  // namespace
}  // namespace everlong::index
