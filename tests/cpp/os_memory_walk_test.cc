// A search that walks, and one that is narrowed by times and tags, over a memory of text alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "everlong/graph/walker.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

using graph::WalkerPolicy;
using graph::WalkFeature;

constexpr int32_t kPage = 16;

store::Manifest TextManifest() {
  store::Manifest manifest = TestManifest();
  manifest.geometry = {0, 0, 0, kPage, "fp32"};
  return manifest;
}

// A page of words that no other page has, with these at its beginning.
std::vector<int32_t> PageOf(int32_t number, const std::vector<int32_t>& words) {
  std::vector<int32_t> ids = words;
  while (ids.size() < kPage) ids.push_back(1000 + kPage * number + static_cast<int32_t>(ids.size()));
  return ids;
}

constexpr int32_t kAsked = 7, kName = 20, kOther = 30;

// Blocks of a page each, none beside the other: the third says (asked, name), the tenth (name, other).
std::unique_ptr<Memory> Chained(const std::vector<std::string>& tags = {}) {
  auto memory = Memory::Create(std::nullopt, TextManifest()).value();
  for (int32_t number = 0; number < 20; ++number) {
    Block block;
    block.stream = number;
    block.span = {0, kPage};
    block.created_at = 100.0 * number;
    block.tags = number == 9 ? tags : std::vector<std::string>{};
    block.ids = PageOf(number, number == 2   ? std::vector<int32_t>{kAsked, kName, kName + 1}
                               : number == 9 ? std::vector<int32_t>{kName, kName + 1, kOther}
                                             : std::vector<int32_t>{});
    EXPECT_TRUE(memory->blocks().Append(DraftOf(block)).ok());
  }
  EXPECT_TRUE(memory->upkeep().Flush().ok());
  return memory;
}

WalkerPolicy ByNames() {
  std::vector<float> inner(2 * graph::kWalkFeatures, 0.0F);
  inner[static_cast<size_t>(WalkFeature::kAskedRank)] = 1;
  inner[static_cast<size_t>(WalkFeature::kSharedRun)] = 1;
  inner[graph::kWalkFeatures + static_cast<size_t>(WalkFeature::kStop)] = 1;
  return *WalkerPolicy::Of(inner, std::vector<float>{0, 0}, std::vector<float>{1, -0.01F}, 0);
}

SearchRequest Asking(const std::vector<int32_t>& ids) {
  SearchRequest request;
  request.token_ids = ids;
  request.kinds = {IndexPart::kLexical};
  request.stream = 99;
  return request;
}

std::vector<int64_t> StreamsOf(const SearchResult& result) {
  std::vector<int64_t> streams;
  for (const FoundGroup& group : result.groups) streams.push_back(group.stream);
  return streams;
}

TEST(OsMemoryWalkTest, GoesOnToWhatAFoundPageNames) {
  const auto memory = Chained();
  const std::vector<int32_t> question{kAsked};
  SearchRequest request = Asking(question);
  EXPECT_EQ(StreamsOf(*memory->search().Find(request)), std::vector<int64_t>{2});

  const WalkerPolicy policy = ByNames();
  request.walk.emplace().policy = &policy;
  const Result<SearchResult> walked = memory->search().Find(request);
  ASSERT_TRUE(walked.ok()) << walked.status().ToString();
  EXPECT_EQ(StreamsOf(*walked), (std::vector<int64_t>{2, 9}));
  EXPECT_FALSE(walked->groups[0].walked);
  EXPECT_TRUE(walked->groups[1].walked);
  ASSERT_TRUE(walked->walk.has_value());
  EXPECT_EQ(walked->walk->trace.from, (std::vector<int32_t>{graph::kFromSearch, 0}));
  EXPECT_EQ(walked->walk->loads[1].stream, 9);
  EXPECT_TRUE(walked->walk->trace.stopped);
}

TEST(OsMemoryWalkTest, NoWayLeadsWhereTheFilterDoesNot) {
  const auto memory = Chained();
  const std::vector<int32_t> question{kAsked};
  SearchRequest request = Asking(question);
  const WalkerPolicy policy = ByNames();
  request.walk.emplace().policy = &policy;
  request.filter.before = 500.0;
  EXPECT_EQ(StreamsOf(*memory->search().Find(request)), std::vector<int64_t>{2});
  request.filter.before.reset();
  const int64_t tenth = memory->blocks().Pages()[9].block;
  ASSERT_TRUE(memory->blocks().Forget(std::span(&tenth, 1)).ok());
  EXPECT_EQ(StreamsOf(*memory->search().Find(request)), std::vector<int64_t>{2});
}

TEST(OsMemoryWalkTest, GoldThatIsNotThereIsRefused) {
  const auto memory = Chained();
  const std::vector<int32_t> question{kAsked};
  SearchRequest request = Asking(question);
  const WalkerPolicy policy = ByNames();
  request.walk.emplace().policy = &policy;
  request.walk->gold = {PageRef{.block = 999, .page = 0}};
  EXPECT_EQ(memory->search().Find(request).status().code(), StatusCode::kNotFound);
}

TEST(OsMemoryWalkTest, ASearchIsNarrowedByWhenItHappenedAndByTags) {
  const auto memory = Chained({"everlong:happened=50.0", "everlong:key=red fox"});
  const std::vector<int32_t> question{kName};
  SearchRequest request = Asking(question);
  EXPECT_EQ(memory->search().Find(request)->groups.size(), 2U);
  NarrowRequest& narrow = request.narrow.emplace();
  narrow.query.times = {{40.0, 60.0}};  // when the tenth happened; it was archived at 900
  SearchResult found = *memory->search().Find(request);
  EXPECT_EQ(StreamsOf(found), std::vector<int64_t>{9});
  EXPECT_EQ(found.narrowed_by, graph::NarrowedBy::kTimesAndAllTags);
  EXPECT_EQ(found.narrowed_to, 1);
  narrow.query = {{}, {"red fox", "nobody's"}};
  found = *memory->search().Find(request);
  EXPECT_EQ(StreamsOf(found), std::vector<int64_t>{9});
  EXPECT_EQ(found.narrowed_by, graph::NarrowedBy::kTimesAndSomeTags);
  narrow.query = {{{1e6, 2e6}}, {}};
  EXPECT_EQ(memory->search().Find(request)->groups.size(), 2U);  // soft
  narrow.soft = false;
  EXPECT_TRUE(memory->search().Find(request)->groups.empty());
  // What is forgotten is of no time any more.
  narrow.query = {{}, {"red fox"}};
  const int64_t tenth = memory->blocks().Pages()[9].block;
  ASSERT_TRUE(memory->blocks().Forget(std::span(&tenth, 1)).ok());
  narrow.soft = true;
  EXPECT_EQ(memory->search().Find(request)->narrowed_by, graph::NarrowedBy::kNothing);
  EXPECT_TRUE(std::ranges::none_of(memory->graph().TagBuckets(), [](const auto& of) { return of.session == 9; }));
}

}  // namespace
}  // namespace everlong::os
