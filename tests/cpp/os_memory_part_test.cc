// A part of nobody's takes part in everything that a memory does with those that it knows.
#include "os_memory_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

float MeanId(const Block& block, const PageRef& page) {
  const auto first = block.ids.begin() + (page.span.begin - block.span.begin);
  return static_cast<float>(std::accumulate(first, first + page.span.size(), 0.0) /
                            static_cast<double>(page.span.size()));
}

bool OnlySinks(const Block& block, const PageRef& page) {
  return page.span.end - block.span.begin <= block.sink_tokens;
}

// The pages that may be found, best first.
std::vector<PageRef> Expected(const std::vector<Block>& blocks, float wanted) {
  std::vector<std::pair<float, PageRef>> scored;
  for (const Block& block : blocks) {
    for (const PageRef& page : block.Pages()) {
      if (!OnlySinks(block, page)) scored.emplace_back(std::abs(MeanId(block, page) - wanted), page);
    }
  }
  std::ranges::stable_sort(scored, {}, [](const auto& page) { return page.first; });
  std::vector<PageRef> pages;
  for (const auto& [distance, page] : scored) pages.push_back(page);
  return pages;
}

Result<SearchResult> Ask(const Memory& memory, const float& wanted, IndexParts kinds = {kMeanIds}) {
  SearchRequest request;
  request.kinds = kinds;
  request.inputs["mean_id"].numbers = {&wanted, 1};
  request.neighbours = 0;
  request.max_groups = 1000;
  request.token_budget = 1'000'000;
  request.least_share = 0;
  return memory.search().Find(request);
}

// As a whole: every page that may be found, and the first place.
void ExpectFound(const Memory& memory, const std::vector<Block>& blocks) {
  for (const float wanted : {0.0F, 13.0F, 25.0F, 44.0F}) {
    const std::vector<PageRef> expected = Expected(blocks, wanted);
    const auto found = Ask(memory, wanted);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    std::vector<PageRef> pages;
    for (const FoundGroup& group : found->groups) {
      pages.insert(pages.end(), group.pages.begin(), group.pages.end());
      EXPECT_EQ(group.found_by, IndexParts({kMeanIds}));
    }
    EXPECT_TRUE(std::ranges::is_permutation(pages, expected));
    ASSERT_FALSE(found->groups.empty());
    const FoundGroup& best = found->groups[0];
    EXPECT_NE(std::ranges::find(best.pages, expected[0]), best.pages.end());
    EXPECT_TRUE(found->agreed);
  }
}

std::vector<Block> Without(std::vector<Block> blocks, const std::vector<int64_t>& ids) {
  std::erase_if(blocks, [&](const Block& block) { return std::ranges::count(ids, block.id) > 0; });
  return blocks;
}

TEST(OsMemoryPartTest, IsKnownByItsName) {
  EXPECT_EQ(index::ParseIndexPart("mean_ids"), kMeanIds);
  EXPECT_EQ(NameOf(kMeanIds), "mean_ids");
  EXPECT_EQ(index::AllIndexParts().back(), kMeanIds);
}

TEST(OsMemoryPartTest, TakesPartInSearchAndForget) {
  Filled filled = FilledInRam(51, 40);
  ExpectFound(*filled.memory, filled.blocks);
  const std::vector<int64_t> gone{2, 3, 17, 40};
  ASSERT_TRUE(filled.memory->blocks().Forget(gone).ok());
  filled.blocks = Without(filled.blocks, gone);
  ExpectFound(*filled.memory, filled.blocks);
  // Most of them: the index is made anew.
  std::vector<int64_t> most;
  for (size_t i = 4; i < filled.blocks.size(); ++i) most.push_back(filled.blocks[i].id);
  ASSERT_TRUE(filled.memory->blocks().Forget(most).ok());
  filled.blocks.resize(4);
  ExpectFound(*filled.memory, filled.blocks);
  const float wanted = 3;
  SearchRequest without_input;
  without_input.kinds = {kMeanIds};
  EXPECT_TRUE(filled.memory->search().Find(without_input)->groups.empty());
  SearchRequest two_numbers = without_input;
  const std::vector<float> numbers{1, 2};
  two_numbers.inputs["mean_id"].numbers = numbers;
  EXPECT_EQ(filled.memory->search().Find(two_numbers).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Ask(*filled.memory, wanted).ok());
}

TEST(OsMemoryPartTest, IsHeardInTheFusion) {
  const Filled filled = FilledInRam(52, 30);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const float wanted = 20;
  const Block& block = filled.blocks[12];
  const Question question = QuestionFor(block, block.span.size() - 1, 4.0F);
  SearchRequest request = question.Request();
  request.inputs["mean_id"].numbers = {&wanted, 1};
  request.kinds = {IndexPart::kHeads, IndexPart::kLexical};
  request.max_groups = 100;
  request.token_budget = 100'000;
  request.neighbours = 0;
  request.least_share = 0;
  const SearchResult without = filled.memory->search().Find(request).value();
  request.kinds |= {kMeanIds};
  const SearchResult with = filled.memory->search().Find(request).value();
  EXPECT_EQ(with.top_mass, without.top_mass);
  EXPECT_EQ(with.decisiveness, without.decisiveness);
  // By its own evidence: w * (sqrt(score) - sqrt(unnamed)), alike for statements and prose, added to what the others
  // say of each.
  request.kinds = {IndexPart::kHeads, IndexPart::kLexical};
  std::map<std::pair<int64_t, int32_t>, index::Evidence> others;
  const std::vector<PageRanking> rankings = filled.memory->search().Rankings(request, 256).value();
  for (const PageRanking& ranking : rankings) {
    if (ranking.granularity != index::Granularity::kPage) continue;  // without neighbours a group says nothing
    const bool heads = ranking.part == IndexPart::kHeads;
    const index::Evidence weights = heads ? index::Evidence{60.0, 2.0} : index::Evidence{1.5, 0.31};
    for (size_t i = 0; i < ranking.pages.size(); ++i) {
      const double share = ranking.scores[i] / ranking.whole;
      const double of_unnamed = ranking.unnamed / ranking.whole;
      const double above = heads ? share - of_unnamed : std::sqrt(share) - std::sqrt(of_unnamed);
      index::Evidence& of = others[{ranking.pages[i].block, ranking.pages[i].page}];
      of.statement += weights.statement * above;
      of.prose += weights.prose * above;
    }
  }
  const std::vector<PageRef> by_mean = Expected(filled.blocks, wanted);
  const auto score_of = [&](const PageRef& page) {
    return 1 / (1 + std::abs(MeanId(filled.blocks[static_cast<size_t>(page.block - 1)], page) - wanted));
  };
  constexpr size_t kCandidates = 101;
  const float unnamed = by_mean.size() < kCandidates ? 0 : score_of(by_mean[kCandidates - 1]);
  const auto evidence_of = [&](const PageRef& page) {
    const double own = 10 * std::max(0.0F, std::sqrt(score_of(page)) - std::sqrt(unnamed));
    const auto also = others.find({page.block, page.page});
    return also == others.end() ? index::Evidence{own, own}
                                : index::Evidence{own + also->second.statement, own + also->second.prose};
  };
  index::Evidence all;  // every page has a score by its mean id
  for (const PageRef& page : by_mean) {
    all.statement += std::exp(evidence_of(page).statement);
    all.prose += std::exp(evidence_of(page).prose);
  }
  constexpr double kStatements = 0.7;
  const auto chance = [&](const index::Evidence& of) {
    return kStatements * std::exp(of.statement) / all.statement + (1 - kStatements) * std::exp(of.prose) / all.prose;
  };
  int compared = 0;
  for (const FoundGroup& group : with.groups) {
    EXPECT_TRUE(group.found_by.Has(kMeanIds));
    for (size_t i = 0; i < group.pages.size(); ++i) {
      const double expected = std::log(chance(evidence_of(group.pages[i])) / chance({0, 0}));
      EXPECT_NEAR(group.page_scores[i], expected, 2e-3);
      ++compared;
    }
  }
  EXPECT_GT(compared, 20);
}

TEST(OsMemoryPartTest, IsSavedCarriedAndTakenUpAgain) {
  const TemporaryFolder folder;
  const std::filesystem::path memory = folder.path() / "memory";
  const std::filesystem::path fork = folder.path() / "fork";
  const std::vector<int64_t> gone{4, 9};
  std::vector<Block> blocks;
  {
    Filled filled = Fill(Memory::Create(memory, TestManifest()).value(), 53, 20);
    ExpectFound(*filled.memory, filled.blocks);
    ASSERT_TRUE(filled.memory->index().Save().ok());
    ASSERT_TRUE(std::filesystem::exists(memory / "index" / "mean_ids"));
    ASSERT_TRUE(filled.memory->upkeep().Fork(fork).ok());
    blocks = filled.blocks;
  }
  const auto expect_loads = [&](const std::filesystem::path& at, const std::vector<Block>& known, int loads) {
    const int before = MeanIdPart::loads;
    const auto opened = Memory::Open(at, false).value();
    ExpectFound(*opened, known);
    EXPECT_EQ(MeanIdPart::loads - before, loads);
    EXPECT_EQ(opened->index().TakeMessages().size(), loads == 0 ? 1U : 0U);
  };
  expect_loads(memory, blocks, 1);
  expect_loads(fork, blocks, 1);
  {
    const auto opened = Memory::Open(memory, false).value();
    ASSERT_TRUE(opened->blocks().Forget(gone).ok());
    Block late = blocks[0];
    late.stream = 8;
    late.id = Append(*opened, late).value();
    blocks.push_back(late);
    ASSERT_TRUE(opened->upkeep().Flush().ok());
  }
  blocks = Without(blocks, gone);
  expect_loads(memory, blocks, 1);  // what is saved, less what is gone, and what came
  {
    const auto opened = Memory::Open(memory, false).value();
    ExpectFound(*opened, blocks);
    ASSERT_TRUE(opened->upkeep().Compact().ok());
    EXPECT_FALSE(std::filesystem::exists(memory / "index" / "mean_ids")) << "it holds what is forgotten";
    ASSERT_TRUE(opened->index().Save().ok());
    EXPECT_TRUE(std::filesystem::exists(memory / "index" / "mean_ids"));
  }
  expect_loads(memory, blocks, 1);
  std::ofstream(memory / "index" / "mean_ids", std::ios::app) << "damaged";
  expect_loads(memory, blocks, 0);
}

TEST(OsMemoryPartTest, TakesTheTensorsOfABlock) {
  const TemporaryFolder folder;
  const std::vector<int64_t> shape{1};
  const float shift = 500;
  PageRef shifted;
  {
    Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 55, 8);
    ASSERT_TRUE(Ask(*filled.memory, shift).ok());  // the part is made, and fed from now on
    Block block = filled.blocks[0];
    block.stream = 9;
    block.sink_tokens = 0;
    const std::vector<std::byte> payload = block.Payload();
    store::BlockDraft draft = DraftOf(block);
    draft.payload = payload;
    const store::TensorView tensor{MeanIdPart::kShift, "F32", shape, std::as_bytes(std::span(&shift, 1))};
    draft.tensors = {&tensor, 1};
    block.id = filled.memory->blocks().Append(draft).value();
    shifted = block.Pages()[0];
    const auto found = Ask(*filled.memory, MeanId(block, shifted) + shift);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->groups[0].pages[0].block, block.id);
    EXPECT_EQ(found->groups[0].score, 1.0F);
    ASSERT_TRUE(filled.memory->upkeep().Flush().ok());
  }
  // Made anew, from what the store has.
  const auto opened = Memory::Open(folder.path(), false).value();
  const auto found = Ask(*opened, shift);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->groups[0].pages[0].block, shifted.block);
  EXPECT_GT(found->groups[0].score, 0.01F);
}

TEST(OsMemoryPartTest, FollowsARepair) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path(), TestManifest(), {.segment_bytes = 1}).value(), 54, 12);
  ExpectFound(*filled.memory, filled.blocks);
  ASSERT_TRUE(std::filesystem::remove(folder.path() / "segments" / "000004.kvseg"));  // of one block
  const auto report = filled.memory->upkeep().Verify(true);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->dropped, std::vector<int64_t>{4});
  ExpectFound(*filled.memory, Without(filled.blocks, {4}));
}

}  // namespace
}  // namespace everlong::os
