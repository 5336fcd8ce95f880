// What a memory finds, against masses and cosines computed from their definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "everlong/kv/archive.h"
#include "everlong/kv/rope_table.h"
#include "everlong/os/memory.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

std::vector<double> ReferenceMass(const std::vector<Block>& blocks, const std::vector<PageRef>& pages,
                                  const Question& question, const std::vector<float>& weights) {
  std::vector<double> mass(pages.size(), 0.0);
  for (size_t t = 0; t < question.ids.size(); ++t) {
    for (size_t h = 0; h < kHeads.size(); ++h) {
      const float* q = &question.head_queries[(t * kHeads.size() + h) * kDim];
      std::vector<double> of_page(pages.size(), 0.0);
      double sum = 0;
      for (size_t p = 0; p < pages.size(); ++p) {
        const Block& block = blocks[static_cast<size_t>(pages[p].block - 1)];
        for (int64_t token = pages[p].span.begin - block.span.begin; token < pages[p].span.end - block.span.begin;
             ++token) {
          if (token < block.sink_tokens) continue;
          const float* k = block.Key(kHeads[h].layer, kHeads[h].kv_head, token);
          double dot = 0;
          for (int32_t d = 0; d < kDim; ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[d]);
          of_page[p] += std::exp(dot / std::sqrt(static_cast<double>(kDim)));
        }
        sum += of_page[p];
      }
      for (size_t p = 0; p < pages.size(); ++p) mass[p] += static_cast<double>(weights[t]) * of_page[p] / sum;
    }
  }
  return mass;
}

TEST(OsMemorySearchTest, IndexesAgreeOnTheirOwnQuestionAndNotAlwaysOnAMixedOne) {
  const Filled filled = FilledInRam(4);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  int agreed = 0;
  int searched = 0;
  for (const Block& words : filled.blocks) {
    for (const Block& keys : filled.blocks) {
      Question question = QuestionFor(words, words.span.size() - 1, 4.0F);
      question.head_queries = QuestionFor(keys, keys.span.size() - 1, 4.0F).head_queries;
      SearchRequest request = question.Request();
      for (const IndexPart kind : {IndexPart::kHeads, IndexPart::kLexical}) {
        request.kinds = {kind};
        const auto alone = filled.memory->search().Find(request);
        ASSERT_TRUE(alone.ok()) << alone.status().ToString();
        EXPECT_EQ(alone->agreed, !alone->groups.empty()) << "one index agrees with itself";
      }
      request.kinds = {IndexPart::kHeads, IndexPart::kLexical};
      const auto both = filled.memory->search().Find(request);
      ASSERT_TRUE(both.ok()) << both.status().ToString();
      agreed += both->agreed ? 1 : 0;
      ++searched;
    }
  }
  EXPECT_GT(agreed, 0);
  EXPECT_LT(agreed, searched);
}

TEST(OsMemorySearchTest, HeadsFindThePageOfTheKeyAndSayHowSurely) {
  const Filled filled = FilledInRam(4);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok()) << "over what is stored already";
  const std::vector<PageRef> pages = filled.memory->blocks().Pages();
  int searched = 0;
  for (const Block& block : filled.blocks) {
    const int64_t token = block.span.size() - 1;
    if (token < block.sink_tokens) continue;
    Question question = QuestionFor(block, token, 4.0F);
    const Question other = QuestionFor(filled.blocks[0], filled.blocks[0].span.size() - 1, 0.1F);
    question.ids.push_back(other.ids[0]);
    question.head_queries.insert(question.head_queries.end(), other.head_queries.begin(), other.head_queries.end());
    SearchRequest request = question.Request();
    request.kinds = {IndexPart::kHeads};
    request.neighbours = 0;
    request.max_groups = 100;
    request.token_budget = 10000;
    const auto result = filled.memory->search().Find(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    ASSERT_FALSE(result->groups.empty());
    const FoundGroup& best = result->groups[0];
    EXPECT_LE(best.span.begin, block.span.begin + token);
    EXPECT_GT(best.span.end, block.span.begin + token);
    EXPECT_EQ(best.stream, block.stream);
    EXPECT_EQ(best.source, block.source);
    EXPECT_EQ(best.found_by, IndexParts({IndexPart::kHeads}));

    const std::vector<float> weights = filled.memory->search().Idf(question.ids);
    std::vector<double> mass = ReferenceMass(filled.blocks, pages, question, weights);
    std::ranges::sort(mass, std::greater<>());
    // The index keeps keys in bf16: 8 bits, and scores up to about 40 go through exp.
    const double all = (static_cast<double>(weights[0]) + static_cast<double>(weights[1])) * 3;
    EXPECT_NEAR(result->top_mass, mass[0] / all, 0.02);
    EXPECT_NEAR(result->decisiveness, mass[0] / mass[1], 0.1 * mass[0] / mass[1]);
    ++searched;
  }
  EXPECT_GT(searched, 10);
  const Question question = QuestionFor(filled.blocks[0], 0, 1.0F);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads({}).ok());
  EXPECT_TRUE(filled.memory->index().retrieval_heads().empty());
  EXPECT_EQ(filled.memory->search().Find(question.Request()).status().code(), StatusCode::kInvalidArgument);
}

TEST(OsMemorySearchTest, HeadsSetBeforeAndAfterAppendingAgree) {
  auto before = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(before->index().SetRetrievalHeads(kHeads).ok());
  const Filled a = Fill(std::move(before), 5, 12);
  const Filled b = FilledInRam(5, 12);
  ASSERT_TRUE(b.memory->index().SetRetrievalHeads(kHeads).ok());
  for (const Block& block : a.blocks) {
    const Question question = QuestionFor(block, 0, 1.0F);
    ExpectSame(*a.memory->search().Find(question.Request()), *b.memory->search().Find(question.Request()));
  }
}

TEST(OsMemorySearchTest, LexicalFindsTheRareToken) {
  auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  std::mt19937_64 random(6);
  for (int64_t i = 0; i < 6; ++i) {
    Block block = RandomBlock(random, 0, i * 8, 8);
    if (i == 3) block.ids[5] = 777;
    ASSERT_TRUE(Append(*memory, block).ok());
  }
  const std::vector<int32_t> ids{777, 5};
  SearchRequest request;
  request.token_ids = ids;
  request.neighbours = 1;
  request.max_groups = 1;
  request.least_share = 1;  // whatever else names the pages beside it
  const auto result = memory->search().Find(request);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->groups.size(), 1U);
  EXPECT_EQ(result->groups[0].span, (TokenSpan{24, 36})) << "page [28, 32) and its neighbours, also of the next block";
  EXPECT_EQ(result->groups[0].found_by, IndexParts({IndexPart::kLexical}));
  EXPECT_EQ(result->top_mass, 0);
  EXPECT_EQ(result->decisiveness, 0);
  const std::vector<float> idf = memory->search().Idf(ids);
  EXPECT_FLOAT_EQ(idf[0], std::log(1.0F + 12.0F / 1.0F));
}

TEST(OsMemorySearchTest, FusionNamesEveryPartThatFoundThePage) {
  const Filled filled = FilledInRam(7);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const Block& block = filled.blocks[9];
  const Question question = QuestionFor(block, block.span.size() - 1, 4.0F);
  SearchRequest request = question.Request();
  request.neighbours = 0;
  const auto result = filled.memory->search().Find(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->groups.empty());
  const FoundGroup& best = result->groups[0];
  EXPECT_EQ(best.stream, block.stream);
  EXPECT_LE(best.span.begin, block.span.end - 1);
  EXPECT_GE(best.span.end, block.span.end);
  EXPECT_EQ(best.found_by, IndexParts({IndexPart::kHeads, IndexPart::kLexical}));
}

TEST(OsMemorySearchTest, MeanPoolAndHnswRankBlocksByCosine) {
  Filled filled = FilledInRam(8);
  const auto mean_of = [](const Block& block) {
    std::vector<double> mean(static_cast<size_t>(kKvHeads * kDim), 0.0);
    for (int32_t head = 0; head < kKvHeads; ++head) {
      for (int64_t t = 0; t < block.span.size(); ++t) {
        for (int32_t d = 0; d < kDim; ++d) {
          mean[static_cast<size_t>(head * kDim + d)] += static_cast<double>(block.Key(kLayers - 1, head, t)[d]);
        }
      }
    }
    return mean;
  };
  const auto check_by = [&](const Block& wanted, IndexPart part) {
    const std::vector<double> mean = mean_of(wanted);
    const std::vector<float> query(mean.begin(), mean.end());
    SearchRequest request;
    request.inputs["mean_query"].numbers = query;
    request.kinds = {part};
    request.neighbours = 0;
    request.max_groups = 1;
    const auto result = filled.memory->search().Find(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    ASSERT_EQ(result->groups.size(), 1U);
    EXPECT_EQ(result->groups[0].pages.front().block, wanted.id);
    EXPECT_NEAR(result->groups[0].score, 1.0, 1e-5);
    EXPECT_EQ(result->groups[0].found_by, request.kinds);
  };
  const auto check = [&](const Block& wanted) {
    check_by(wanted, IndexPart::kMeanPool);
    check_by(wanted, IndexPart::kHnsw);
  };
  check(filled.blocks[4]);
  std::mt19937_64 random(80);
  Block late = RandomBlock(random, 5, 0, 9);
  late.id = Append(*filled.memory, late).value();
  check(late);
  ASSERT_TRUE(filled.memory->blocks().Forget(std::vector<int64_t>{late.id}).ok());
  check(filled.blocks[11]);
}

TEST(OsMemorySearchTest, SearchKeepsToItsFilter) {
  const Filled filled = FilledInRam(9, 30);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const std::vector<int64_t> forgotten{5, 6, 17};
  ASSERT_TRUE(filled.memory->blocks().Forget(forgotten).ok());
  for (const Block& block : filled.blocks) {
    const Question question = QuestionFor(block, block.span.size() - 1, 2.0F);
    SearchRequest request = question.Request();
    request.stream = 1;
    request.resident_from = 20;
    request.filter.sources = {"book"};
    request.max_groups = 100;
    request.token_budget = 10000;
    const auto result = filled.memory->search().Find(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    std::set<int64_t> seen;
    for (const FoundGroup& group : result->groups) {
      EXPECT_EQ(group.source, "book");
      for (const PageRef& page : group.pages) {
        EXPECT_FALSE(page.stream == 1 && page.span.begin >= 20);
        EXPECT_EQ(std::ranges::count(forgotten, page.block), 0);
        EXPECT_GT(page.span.end, 3) << "only sinks";
        seen.insert(page.block);
      }
    }
    EXPECT_GT(seen.size(), 3U);
  }
}

TEST(OsMemorySearchTest, NothingComesBackOfAStreamThatIsWhollyInTheFrame) {
  const Filled filled = FilledInRam(9, 30);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  int others = 0;
  for (const Block& block : filled.blocks) {
    const Question question = QuestionFor(block, block.span.size() - 1, 2.0F);
    SearchRequest request = question.Request();
    request.stream = 1;
    request.resident_from = 3;  // where rolling begins behind the sinks while nothing has left
    request.max_groups = 100;
    request.token_budget = 10000;
    const auto result = filled.memory->search().Find(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    for (const FoundGroup& group : result->groups) {
      EXPECT_NE(group.stream, 1);
      ++others;
    }
  }
  EXPECT_GT(others, 0);
}

// What a filter lets through, by its definition.
bool Passes(const Block& block, const SearchFilter& filter) {
  bool passes = filter.sources.empty();
  for (const std::string& source : filter.sources) passes = passes || source == block.source;
  for (const std::string& tag : filter.tags) passes = passes && std::ranges::count(block.tags, tag) > 0;
  if (filter.since) passes = passes && block.created_at >= *filter.since;
  if (filter.before) passes = passes && block.created_at < *filter.before;
  return passes;
}

// Blocks over three streams whose sources, tags and times are drawn by the seed.
Filled FilledWithLabels(uint64_t seed, int count) {
  Filled filled{Memory::Create(std::nullopt, TestManifest()).value(), {}};
  std::mt19937_64 random(seed);
  std::map<int64_t, int64_t> ends;
  for (int i = 0; i < count; ++i) {
    const auto stream = static_cast<int64_t>(random() % 3);
    const auto tokens = static_cast<int64_t>(1 + random() % 8);
    Block block = RandomBlock(random, stream, ends[stream], tokens, random() % 2 == 0 ? "book" : "letters");
    block.tags.clear();
    for (const char* tag : {"work", "home", "2025"}) {
      if (random() % 2 == 0) block.tags.emplace_back(tag);
    }
    block.created_at = static_cast<double>(random() % 100);
    ends[stream] += tokens;
    block.id = Append(*filled.memory, block).value();
    filled.blocks.push_back(std::move(block));
  }
  return filled;
}

const std::vector<SearchFilter> kFilters{
    {{"book"}, {}, {}, {}}, {{"book", "letters"}, {"work"}, {}, {}}, {{}, {"work", "home"}, {}, {}}, {{}, {}, 40.0, {}},
    {{}, {}, {}, 40.0},     {{"letters"}, {"2025"}, 20.0, 80.0},
};

TEST(OsMemorySearchTest, AFilteredSearchIsASearchOfAMemoryThatHoldsNothingElse) {
  const Filled filled = FilledWithLabels(21, 30);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  for (const SearchFilter& filter : kFilters) {
    const auto alone = Memory::Create(std::nullopt, TestManifest()).value();
    ASSERT_TRUE(alone->index().SetRetrievalHeads(kHeads).ok());
    size_t kept = 0;
    for (const Block& block : filled.blocks) {
      if (!Passes(block, filter)) continue;
      ASSERT_TRUE(Append(*alone, block).ok());
      ++kept;
    }
    ASSERT_GT(kept, 0U);
    ASSERT_LT(kept, filled.blocks.size());
    for (const IndexPart kind : {IndexPart::kHeads, IndexPart::kMeanPool, IndexPart::kHnsw}) {
      for (const Block& block : filled.blocks) {
        const Question question = QuestionFor(block, block.span.size() - 1, 1.0F);
        SearchRequest request = question.Request();
        request.inputs["mean_query"].numbers = std::span(question.head_queries).first(kKvHeads * kDim);
        request.kinds = {kind};
        request.max_groups = 100;
        request.token_budget = 10000;
        const auto expected = alone->search().Find(request);
        request.filter = filter;
        const auto found = filled.memory->search().Find(request);
        ASSERT_TRUE(expected.ok()) << expected.status().ToString();
        ASSERT_TRUE(found.ok()) << found.status().ToString();
        ASSERT_FALSE(found->groups.empty());
        ASSERT_EQ(found->groups.size(), expected->groups.size());
        // The id's weight is of all pages, but a share of all that was looked for is without it.
        for (size_t i = 0; i < found->groups.size(); ++i) {
          EXPECT_EQ(found->groups[i].stream, expected->groups[i].stream);
          EXPECT_EQ(found->groups[i].span, expected->groups[i].span);
          EXPECT_NEAR(found->groups[i].score, expected->groups[i].score, 1e-4F + 1e-5F * expected->groups[i].score);
        }
        // Ratios of sums that were rounded under other weights.
        EXPECT_NEAR(found->top_mass, expected->top_mass, 1e-5F * expected->top_mass);
        EXPECT_NEAR(found->decisiveness, expected->decisiveness, 1e-5F * expected->decisiveness);
      }
    }
  }
}

TEST(OsMemorySearchTest, WordsAreFoundInEveryPageThatPassesAndInNoOther) {
  const Filled filled = FilledWithLabels(22, 40);
  for (const SearchFilter& filter : kFilters) {
    for (const Block& asked : filled.blocks) {
      SearchRequest request;
      request.token_ids = asked.ids;
      request.kinds = {IndexPart::kLexical};
      request.neighbours = 0;
      request.max_groups = 1000;
      request.token_budget = 10000;
      request.least_share = 0;
      request.filter = filter;
      std::set<std::pair<int64_t, int32_t>> expected;
      struct Passing {
        PageRef page;
        std::string source;
      };
      std::vector<Passing> passing;
      for (const Block& block : filled.blocks) {
        for (const PageRef& page : block.Pages()) {
          bool has_word = false;
          for (int64_t t = page.span.begin - block.span.begin; t < page.span.end - block.span.begin; ++t) {
            has_word = has_word || std::ranges::count(asked.ids, block.ids[static_cast<size_t>(t)]) > 0;
          }
          const bool only_sinks = page.span.end - block.span.begin <= block.sink_tokens;
          if (only_sinks || !Passes(block, filter)) continue;
          passing.push_back({page, block.source});
          if (has_word) expected.emplace(page.block, page.page);
        }
      }
      const auto rankings = filled.memory->search().Rankings(request, 1000);
      ASSERT_TRUE(rankings.ok());
      ASSERT_EQ(rankings->size(), 2U);
      std::set<std::pair<int64_t, int32_t>> alone;
      for (const PageRef& page : rankings->at(0).pages) alone.emplace(page.block, page.page);
      EXPECT_EQ(alone, expected);
      // As groups, those beside them, too.
      const std::set<std::pair<int64_t, int32_t>> with_word = expected;
      for (const auto& [page, source] : passing) {
        for (const auto& [other, other_source] : passing) {
          if (other.stream == page.stream && other_source == source && with_word.contains({other.block, other.page}) &&
              (other.span.end == page.span.begin || other.span.begin == page.span.end)) {
            expected.emplace(page.block, page.page);
          }
        }
      }
      std::set<std::pair<int64_t, int32_t>> groups;
      for (const PageRef& page : rankings->at(1).pages) groups.emplace(page.block, page.page);
      EXPECT_EQ(groups, expected);
      const auto found = filled.memory->search().Find(request);
      ASSERT_TRUE(found.ok());
      std::set<std::pair<int64_t, int32_t>> pages;
      for (const FoundGroup& group : found->groups) {
        for (const PageRef& page : group.pages) pages.emplace(page.block, page.page);
      }
      EXPECT_EQ(pages, with_word) << "where no neighbour comes back, pages alone count";
    }
  }
}

TEST(OsMemorySearchTest, EverySearchByPartsThatTellIsAsSureAsItsGroupsTogether) {
  const Filled filled = FilledInRam(7);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const IndexParts by_heads({IndexPart::kHeads});
  const IndexParts by_words({IndexPart::kLexical});
  const IndexParts by_means({IndexPart::kMeanPool, IndexPart::kHnsw});
  int searched = 0;
  for (const Block& block : filled.blocks) {
    const Question question = QuestionFor(block, block.span.size() - 1, 4.0F);
    SearchRequest request = question.Request();
    request.inputs["mean_query"].numbers = std::span(question.head_queries).first(kKvHeads * kDim);
    for (const int32_t neighbours : {0, 1}) {
      request.neighbours = neighbours;
      for (const IndexParts& kinds : {by_heads, by_words, IndexParts({IndexPart::kHeads, IndexPart::kLexical}),
                                      IndexParts({IndexPart::kHeads, IndexPart::kMeanPool})}) {
        request.kinds = kinds;
        const auto found = filled.memory->search().Find(request);
        ASSERT_TRUE(found.ok());
        ASSERT_TRUE(found->confidence.has_value());
        EXPECT_EQ(*found->confidence, static_cast<float>(*index::Confidence(found->signs)));
        EXPECT_EQ(found->signs.parts.Has(IndexPart::kHeads), kinds.Has(IndexPart::kHeads));
        EXPECT_FALSE(found->signs.parts.Has(IndexPart::kMeanPool));
        float together = 0;
        for (const FoundGroup& group : found->groups) {
          EXPECT_GE(group.confidence.value(), 0.0F);
          together += *group.confidence;
        }
        EXPECT_NEAR(together, *found->confidence, 1e-5);
        searched += found->groups.empty() ? 0 : 1;
      }
      request.kinds = by_means;
      const auto found = filled.memory->search().Find(request);
      ASSERT_FALSE(found->groups.empty());
      EXPECT_EQ(found->confidence, std::nullopt);
      EXPECT_EQ(found->groups[0].confidence, std::nullopt);
    }
  }
  EXPECT_GT(searched, 50);
}

TEST(OsMemorySearchTest, AFilterThatMatchesNothingGivesNothing) {
  const Filled filled = FilledWithLabels(23, 12);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const Question question = QuestionFor(filled.blocks[5], 0, 1.0F);
  SearchRequest request = question.Request();
  request.inputs["mean_query"].numbers = std::span(question.head_queries).first(kKvHeads * kDim);
  for (const IndexParts& kinds :
       {IndexParts({IndexPart::kHeads}), IndexParts({IndexPart::kLexical}), IndexParts({IndexPart::kMeanPool}),
        IndexParts({IndexPart::kHnsw}),
        IndexParts({IndexPart::kHeads, IndexPart::kLexical, IndexPart::kMeanPool, IndexPart::kHnsw})}) {
    request.kinds = kinds;
    request.filter = {};
    EXPECT_FALSE(filled.memory->search().Find(request)->groups.empty());
    for (const SearchFilter& filter :
         {SearchFilter{{"nowhere"}, {}, {}, {}}, SearchFilter{{}, {"work", "none"}, {}, {}},
          SearchFilter{{}, {}, 1000.0, {}}, SearchFilter{{}, {}, 50.0, 50.0}}) {
      request.filter = filter;
      const auto found = filled.memory->search().Find(request);
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      EXPECT_TRUE(found->groups.empty());
      EXPECT_EQ(found->top_mass, 0.0F);
      EXPECT_EQ(found->decisiveness, 0.0F);
      EXPECT_EQ(found->confidence, 0.0F);
      EXPECT_FALSE(found->agreed);
    }
  }
}

TEST(OsMemorySearchTest, RecentPagesKeepToAFilter) {
  const Filled filled = FilledWithLabels(24, 30);
  for (const SearchFilter& filter : kFilters) {
    std::vector<PageRef> expected;
    int blocks = 0;
    for (auto block = filled.blocks.rbegin(); block != filled.blocks.rend() && blocks < 3; ++block) {
      if (block->stream != 1 || !Passes(*block, filter)) continue;
      const std::vector<PageRef> pages = block->Pages();
      expected.insert(expected.begin(), pages.begin(), pages.end());
      ++blocks;
    }
    EXPECT_EQ(filled.memory->search().RecentPages(1, INT64_MAX, 3, filter).value(), expected);
  }
}

// One page a block, in one stream, far apart: of some roles, all with the words that are asked for.
std::unique_ptr<Memory> WithRoles(const std::vector<std::pair<Role, std::vector<int32_t>>>& texts) {
  auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  std::mt19937_64 random(7);
  int64_t begin = 100;
  for (const auto& [role, ids] : texts) {
    Block block = RandomBlock(random, 0, begin, std::ssize(ids));
    block.ids = ids;
    block.role = role;
    EXPECT_TRUE(Append(*memory, block).ok());
    begin += 100;
  }
  return memory;
}

std::vector<int64_t> BlocksFound(const Memory& memory, std::optional<Roles> roles) {
  const std::vector<int32_t> question{60, 61};
  SearchRequest request;
  request.token_ids = question;
  request.kinds = {IndexPart::kLexical};
  request.filter.roles = roles;
  request.least_share = 0;
  std::vector<int64_t> found;
  const auto result = memory.search().Find(request);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  for (const FoundGroup& group : result->groups) found.push_back(group.pages.front().block);
  return found;
}

TEST(OsMemorySearchTest, WhatWasAskedIsNoEvidenceAndWhatWasSaidIsLess) {
  using enum Role;
  const auto memory =
      WithRoles({{kRead, {1, 60, 61, 2}}, {kAsked, {60, 61}}, {kSaid, {60, 61}}, {kRead, {5, 6}}, {kAsked, {7}}});
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(BlocksFound(*memory, std::nullopt), (Ids{1, 3})) << "shorter, and so better, but said";
  EXPECT_EQ(BlocksFound(*memory, Roles{kRead, kSaid}), (Ids{3, 1}));
  EXPECT_EQ(BlocksFound(*memory, Roles::All()), (Ids{2, 3, 1}));
  EXPECT_EQ(BlocksFound(*memory, Roles{kAsked}), (Ids{2}));
  EXPECT_EQ(BlocksFound(*memory, Roles{kSaid}), (Ids{3}));
  EXPECT_EQ(BlocksFound(*memory, Roles{}), (Ids{}));

  const auto blocks_of = [](const std::vector<PageRef>& pages) {
    std::set<int64_t> blocks;
    for (const PageRef& page : pages) blocks.insert(page.block);
    return blocks;
  };
  EXPECT_EQ(blocks_of(memory->search().RecentPages(0, 10'000, 9).value()), (std::set<int64_t>{1, 3, 4}));
  EXPECT_EQ(blocks_of(memory->search().RandomPages(0, 10'000, 9, 1).value()), (std::set<int64_t>{1, 3, 4}));
  SearchFilter asked;
  asked.roles = Roles{kAsked};
  EXPECT_EQ(blocks_of(memory->search().RecentPages(0, 10'000, 1, asked).value()), (std::set<int64_t>{5}));
  EXPECT_EQ(blocks_of(memory->search().RandomPages(0, 10'000, 9, 1, asked).value()), (std::set<int64_t>{2, 5}));
}

TEST(OsMemorySearchTest, WhatWasSaidAloneIsFound) {
  const auto memory = WithRoles({{Role::kSaid, {60, 61}}, {Role::kRead, {1, 2}}});
  EXPECT_EQ(BlocksFound(*memory, std::nullopt), (std::vector<int64_t>{1}));
}

TEST(OsMemorySearchTest, NoGroupCrossesARoleThatIsLeftOut) {
  auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  std::mt19937_64 random(9);
  int64_t begin = 50;
  for (const Role role : {Role::kRead, Role::kAsked, Role::kSaid}) {
    Block block = RandomBlock(random, 0, begin, kPageTokens);
    block.ids.assign(kPageTokens, 60 + static_cast<int32_t>(role));
    block.role = role;
    ASSERT_TRUE(Append(*memory, block).ok());
    begin += kPageTokens;
  }
  const std::vector<int32_t> question{60, 62};
  SearchRequest request;
  request.token_ids = question;
  request.kinds = {IndexPart::kLexical};
  request.neighbours = 2;
  auto found = memory->search().Find(request);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->groups.size(), 2U);
  for (const FoundGroup& group : found->groups) EXPECT_EQ(group.pages.size(), 1U);
  request.filter.roles = Roles::All();
  found = memory->search().Find(request);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->groups.size(), 1U);
  EXPECT_EQ(found->groups[0].pages.size(), 3U);
}

TEST(OsMemorySearchTest, DiscountIsInLogOdds) {
  auto memory = WithRoles({{Role::kRead, {60, 61, 1}}, {Role::kSaid, {60, 61, 1}}});
  ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
  const std::vector<int32_t> question{60, 61};
  const std::vector<float> queries(question.size() * kHeads.size() * kDim, 0.0F);
  SearchRequest request;
  request.token_ids = question;
  request.inputs["head_queries"].numbers = queries;
  request.neighbours = 0;
  request.least_share = 0;
  const auto found = memory->search().Find(request);
  request.filter.roles = Roles{Role::kRead, Role::kSaid};
  const auto plain = memory->search().Find(request);
  ASSERT_TRUE(found.ok() && plain.ok());
  ASSERT_EQ(found->groups.size(), 2U);
  ASSERT_EQ(plain->groups.size(), 2U);
  std::map<int64_t, float> scores;
  for (const FoundGroup& group : plain->groups) scores[group.pages[0].block] = group.score;
  EXPECT_EQ(found->groups[0].pages[0].block, 1);
  EXPECT_FLOAT_EQ(found->groups[0].score, scores[1]);
  EXPECT_FLOAT_EQ(found->groups[1].score, scores[2] - static_cast<float>(kSaidDiscount));
}

TEST(OsMemorySearchTest, AddedScoresComeOnTopAndMoveGroups) {
  const auto memory = WithRoles({{Role::kRead, {60, 61, 1}}, {Role::kRead, {60, 2, 3}}, {Role::kRead, {4, 5, 6}}});
  const std::vector<int32_t> question{60, 61};
  SearchRequest request;
  request.token_ids = question;
  request.kinds = {IndexPart::kLexical};
  request.neighbours = 0;
  request.least_share = 0;
  const auto plain = memory->search().Find(request);
  ASSERT_TRUE(plain.ok());
  ASSERT_EQ(plain->groups.size(), 2U);
  const PageRef first = plain->groups[0].pages[0];
  const PageRef second = plain->groups[1].pages[0];
  EXPECT_EQ(first.block, 1);

  const PageRef unnamed{3, 0, first.stream, {300, 303}, 0};
  const PageRef missing{77, 0, first.stream, {900, 903}, 0};
  request.added = {{second, 50.0F}, {first, -1.0F}, {first, 0.5F}, {unnamed, 100.0F}, {missing, 100.0F}};
  const auto found = memory->search().Find(request);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  ASSERT_EQ(found->groups.size(), 2U) << "nobody is found by what is added alone";
  EXPECT_EQ(found->groups[0].pages[0], second);
  EXPECT_FLOAT_EQ(found->groups[0].score, plain->groups[1].score + 50.0F);
  EXPECT_FLOAT_EQ(found->groups[0].page_scores[0], plain->groups[1].score + 50.0F);
  EXPECT_EQ(found->groups[0].found_by, plain->groups[1].found_by);
  EXPECT_FLOAT_EQ(found->groups[1].score, plain->groups[0].score - 0.5F);

  request.max_groups = 1;
  const auto one = memory->search().Find(request);
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->groups.size(), 1U);
  EXPECT_EQ(one->groups[0].pages[0], second) << "the order is made before groups are cut";
}

TEST(OsMemorySearchTest, MoreGroupsThanThereAreMayBeAskedFor) {
  const Filled filled = FilledInRam(13, 70);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(filled.memory->index().SetPageVectors({"encoder", 3}).ok());
  const std::vector<int32_t> pages(kMaxPageVectors, 0);
  const std::vector<float> vectors(3 * kMaxPageVectors, 1.0F);
  for (const Block& block : filled.blocks) {
    ASSERT_TRUE(filled.memory->index().AddPageVectors(block.id, pages, vectors).ok());
  }
  const Block& block = filled.blocks[20];
  const Question question = QuestionFor(block, block.span.size() - 1, 0.5F);
  SearchRequest request = question.Request();
  const std::vector<float> page_query{1.0F, 2.0F, 3.0F};
  request.inputs["page_query"].numbers = page_query;
  request.kinds |= {IndexPart::kEmbedding};
  request.token_budget = INT64_MAX;
  request.max_groups = static_cast<int32_t>(filled.memory->blocks().Pages().size()) + 1;
  const auto all = filled.memory->search().Find(request);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_FALSE(all->groups.empty());
  for (const int32_t more : {1 << 27, 1 << 30, INT32_MAX}) {
    request.max_groups = more;
    const auto found = filled.memory->search().Find(request);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    ExpectSame(*found, *all);
  }
}

TEST(OsMemorySearchTest, SearchRefusesNonsense) {
  const Filled filled = FilledInRam(10, 3);
  const std::vector<int32_t> ids{1};
  const auto refuses = [&](auto change) {
    SearchRequest request;
    request.token_ids = ids;
    change(request);
    EXPECT_EQ(filled.memory->search().Find(request).status().code(), StatusCode::kInvalidArgument);
  };
  refuses([](SearchRequest& r) { r.kinds = {}; });
  refuses([](SearchRequest& r) { r.max_groups = 0; });
  refuses([](SearchRequest& r) { r.neighbours = -1; });
  refuses([](SearchRequest& r) { r.token_budget = -1; });
  refuses([](SearchRequest& r) { r.added = {{{1, 0, 0, {0, 4}, 0}, std::numeric_limits<float>::infinity()}}; });
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const std::vector<float> wrong_size(7);
  refuses([&](SearchRequest& r) { r.inputs["head_queries"].numbers = wrong_size; });
  refuses([&](SearchRequest& r) {
    r.inputs["mean_query"].numbers = wrong_size;
    r.kinds = {IndexPart::kMeanPool};
  });
  const auto nothing = Memory::Create(std::nullopt, TestManifest()).value()->search().Find({});
  ASSERT_TRUE(nothing.ok());
  EXPECT_TRUE(nothing->groups.empty());
}

TEST(OsMemorySearchTest, FindsWhatArchiveSpanWrote) {
  constexpr int64_t kTokens = 24;
  const kv::RopeTable rope{{1.0, 0.3, 0.1, 0.01}, 1.0, kv::Pairing::kHalfSplit};
  for (const std::string codec : {"fp32", "bf16", "e4m3"}) {
    auto memory = Memory::Create(std::nullopt, TestManifest(codec)).value();
    std::mt19937_64 random(18);
    Block block = RandomBlock(random, 0, 0, kTokens);
    block.sink_tokens = 0;
    // Rotated by hand, pair (d, d + D/2).
    std::vector<float> rotated = block.keys;
    std::vector<float> cos(static_cast<size_t>(kTokens * kDim / 2));
    std::vector<float> sin(cos.size());
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int32_t d = 0; d < kDim / 2; ++d) {
        const double angle = static_cast<double>(100 + t) * rope.inv_freq[static_cast<size_t>(d)];
        cos[static_cast<size_t>(t * kDim / 2 + d)] = static_cast<float>(std::cos(angle));
        sin[static_cast<size_t>(t * kDim / 2 + d)] = static_cast<float>(std::sin(angle));
        for (int32_t row = 0; row < kLayers * kKvHeads; ++row) {
          const size_t at = static_cast<size_t>((row * kTokens + t) * kDim + d);
          const double x = block.keys[at];
          const double y = block.keys[at + kDim / 2];
          rotated[at] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
          rotated[at + kDim / 2] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
        }
      }
    }
    const kv::FrameKv frame{.k = rotated.data(),
                            .v = block.values.data(),
                            .dtype = DType::kFloat32,
                            .layers = kLayers,
                            .kv_heads = kKvHeads,
                            .head_dim = kDim,
                            .slots = kTokens,
                            .layer_stride = kKvHeads * kTokens * kDim,
                            .head_stride = kTokens * kDim};
    std::vector<std::byte> payload(static_cast<size_t>(memory->layout().BlockBytes(kTokens)));
    ASSERT_TRUE(kv::ArchiveSpan(frame, {cos.data(), sin.data(), kDim / 2}, kv::Pairing::kHalfSplit, 0, kTokens,
                                memory->layout(), payload)
                    .ok());
    store::BlockDraft draft;
    draft.span = {0, kTokens};
    draft.token_ids = block.ids;
    draft.payload = payload;
    ASSERT_TRUE(memory->blocks().Append(draft).ok());
    ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    for (int64_t token = 0; token < kTokens; token += 5) {
      const Question question = QuestionFor(block, token, 4.0F);
      SearchRequest request = question.Request();
      request.kinds = {IndexPart::kHeads};
      request.neighbours = 0;
      request.max_groups = 1;
      const auto result = memory->search().Find(request);
      ASSERT_TRUE(result.ok());
      ASSERT_EQ(result->groups.size(), 1U);
      EXPECT_EQ(result->groups[0].pages.front().page, token / kPageTokens) << codec;
    }
  }
}

}  // namespace
}  // namespace everlong::os
