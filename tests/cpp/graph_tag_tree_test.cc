#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "everlong/graph/own_tags.h"
#include "everlong/graph/tag_tree.h"

namespace everlong::graph {
namespace {

constexpr double kDay = 86'400;

struct Block {
  int64_t id;
  double time;
  int64_t session;
  std::vector<std::string> tags;
};

std::string Name(int number) { return std::string("t").append(std::to_string(number)); }

// By looking at every block.
Narrowed Brute(const std::vector<Block>& blocks, const TagQuery& query) {
  const std::set<std::string> wanted(query.tags.begin(), query.tags.end());
  if (query.times.empty() && wanted.empty()) return {};
  std::map<std::string, int64_t> df;
  for (const Block& block : blocks) {
    for (const std::string& tag : std::set<std::string>(block.tags.begin(), block.tags.end())) ++df[tag];
  }
  struct Seen {
    const Block* block;
    size_t tags;
    double rarity;
    bool timely;
  };
  std::vector<Seen> seen;
  for (const Block& block : blocks) {
    Seen of{&block, 0, 0, query.times.empty()};
    for (const TimeRange& range : query.times) {
      of.timely = of.timely || (range.since <= block.time && block.time < range.before);
    }
    for (const std::string& tag : wanted) {
      if (std::ranges::find(block.tags, tag) == block.tags.end()) continue;
      ++of.tags;
      of.rarity += std::log1p(static_cast<double>(blocks.size()) / static_cast<double>(df[tag]));
    }
    seen.push_back(of);
  }
  const auto these = [&](NarrowedBy by, const auto& allowed, bool by_tags) -> Narrowed {
    std::vector<Seen> chosen;
    std::ranges::copy_if(seen, std::back_inserter(chosen), allowed);
    std::ranges::sort(chosen, [&](const Seen& a, const Seen& b) {
      if (by_tags && std::abs(a.rarity - b.rarity) > 1e-9) return a.rarity > b.rarity;
      return a.block->time != b.block->time ? a.block->time > b.block->time : a.block->id > b.block->id;
    });
    if (std::cmp_greater(chosen.size(), query.most)) chosen.resize(static_cast<size_t>(query.most));
    Narrowed narrowed{by, {}};
    for (const Seen& of : chosen) narrowed.blocks.push_back(of.block->id);
    std::ranges::sort(narrowed.blocks);
    return narrowed;
  };
  const auto whole =
      these(NarrowedBy::kTimesAndAllTags, [&](const Seen& of) { return of.timely && of.tags == wanted.size(); }, true);
  if (!whole.blocks.empty()) return whole;
  const auto some =
      these(NarrowedBy::kTimesAndSomeTags, [&](const Seen& of) { return of.timely && of.tags > 0; }, true);
  if (!some.blocks.empty()) return some;
  if (!query.times.empty()) {
    const auto timely = these(NarrowedBy::kTimes, [&](const Seen& of) { return of.timely; }, false);
    if (!timely.blocks.empty()) return timely;
  }
  const auto tagged = these(NarrowedBy::kTags, [&](const Seen& of) { return of.tags > 0; }, true);
  return tagged.blocks.empty() ? Narrowed() : tagged;
}

TEST(TagTreeTest, NarrowsAsLookingAtEveryBlockDoes) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 30; ++trial) {
    TagTree tree;
    std::vector<Block> blocks;
    std::uniform_real_distribution<double> times(-400 * kDay, 800 * kDay);
    std::uniform_int_distribution<int> tags(0, 12);
    const int count = trial % 5 == 0 ? 3000 : 200;
    for (int64_t id = 1; id <= count; ++id) {
      Block block{3 * id, times(random), id % 3, {}};
      for (int i = 0; i < tags(random) / 3; ++i) block.tags.push_back(Name(tags(random)));
      tree.Add(block.id, block.time, block.session, block.tags);
      blocks.push_back(block);
    }
    std::erase_if(blocks, [&](const Block& block) {
      if (std::uniform_real_distribution<double>()(random) > (trial % 2 == 0 ? 0.3 : 0.7)) return false;
      tree.Forget(block.id, block.tags);
      return true;
    });
    EXPECT_EQ(tree.blocks(), std::ssize(blocks));
    for (int ask = 0; ask < 40; ++ask) {
      TagQuery query;
      for (int i = 0; i < ask % 3; ++i) {
        const double since = times(random);
        query.times.push_back({since, since + (ask % 7 == 0 ? -1.0 : 30 * kDay)});
      }
      for (int i = 0; i < ask % 4; ++i) query.tags.push_back(Name(tags(random) * (ask % 5 == 0 ? 5 : 1)));
      query.most = ask % 2 == 0 ? 10'000 : 7;
      const Narrowed found = tree.Narrow(query);
      const Narrowed expected = Brute(blocks, query);
      EXPECT_EQ(found.by, expected.by);
      EXPECT_EQ(found.blocks, expected.blocks);
    }
  }
}

TEST(TagTreeTest, ForgottenBlocksLeaveNoCountAndNoName) {
  TagTree tree;
  tree.Add(1, 0, 0, std::vector<std::string>{"a", "b", "a"});
  tree.Add(2, kDay, 0, std::vector<std::string>{"b"});
  EXPECT_EQ(tree.BlocksWith("a"), 1);
  EXPECT_EQ(tree.BlocksWith("b"), 2);
  const std::vector<std::string> of_first{"a", "b", "a"};
  tree.Forget(1, of_first);
  tree.Forget(1, of_first);
  tree.Forget(9, of_first);
  EXPECT_EQ(tree.BlocksWith("a"), 0);
  EXPECT_EQ(tree.BlocksWith("b"), 1);
  EXPECT_FALSE(tree.Has(1));
  EXPECT_EQ(tree.Narrow({{}, {"a"}}).by, NarrowedBy::kNothing);
  ASSERT_EQ(tree.Buckets().size(), 1U);
  EXPECT_EQ(tree.Buckets()[0].day, 2U);
  tree.Add(3, 0, 0, std::vector<std::string>{"a"});
  EXPECT_EQ(tree.Narrow({{}, {"a"}}).blocks, std::vector<int64_t>{3});
}

TEST(TagTreeTest, BucketsAreDaysOfTheCalendar) {
  TagTree tree;
  tree.Add(1, 951'782'400, 5, {});   // 2000-02-29
  tree.Add(2, 951'782'399, 5, {});   // the second before
  tree.Add(3, -1, 6, {});            // 1969-12-31
  tree.Add(4, std::nan(""), 6, {});  // 1970-01-01
  const auto buckets = tree.Buckets();
  ASSERT_EQ(buckets.size(), 4U);
  EXPECT_EQ(buckets[0].year, 1969);
  EXPECT_EQ(buckets[1].year, 1970);
  EXPECT_EQ(buckets[2].day, 28U);
  EXPECT_EQ(buckets[3].month, 2U);
  EXPECT_EQ(buckets[3].day, 29U);
  EXPECT_EQ(buckets[3].session, 5);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(tree.Narrow({{{-kInfinity, kInfinity}}, {}}).blocks.size(), 4U);
}

TEST(TagTreeTest, OwnTagsSayWhenAndWhatAbout) {
  const ToldTags told = ToldBy(std::vector<std::string>{"mine", "everlong:happened=12.5", "everlong:key=red fox",
                                                        "everlong:text=abc", "everlong:happened=x"});
  EXPECT_EQ(told.happened, 12.5);
  EXPECT_EQ(told.tags, (std::vector<std::string>{"mine", "red fox"}));
}

}  // namespace
}  // namespace everlong::graph
