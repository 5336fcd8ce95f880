// Searches beside one thread that appends and one that forgets: blocks are there as a whole or not at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base_held_reader.h"
#include "os_memory_blocks.h"
#include "os_memory_part.h"

namespace everlong::os {
namespace {

constexpr int kBlocks = 160;
constexpr int32_t kOwnId = 1000;  // + a block's id: a token that every page of the block has, and no other

enum Life : int { kUnknown, kAppended, kForgetting, kForgotten };

class Library {
 public:
  Library() {
    std::mt19937_64 random(91);
    std::map<int64_t, int64_t> ends;
    for (int i = 0; i < kBlocks; ++i) {
      const auto stream = static_cast<int64_t>(random() % 3);
      const auto tokens = static_cast<int64_t>(5 + random() % 20);
      Block block = RandomBlock(random, stream, ends[stream], tokens, i % 2 == 0 ? "book" : "letters");
      block.sink_tokens = 0;
      block.tags = {i % 3 == 0 ? "old" : "new"};
      block.id = i + 1;
      ends[stream] += tokens;
      for (size_t token = 0; token < block.ids.size(); token += kPageTokens) {
        block.ids[token] = static_cast<int32_t>(kOwnId + block.id);
      }
      blocks_.push_back(std::move(block));
    }
  }

  [[nodiscard]] const Block& block(int64_t id) const { return blocks_[static_cast<size_t>(id - 1)]; }
  [[nodiscard]] Life life(int64_t id) const { return static_cast<Life>(lives_[static_cast<size_t>(id - 1)].load()); }
  void Set(int64_t id, Life life) { lives_[static_cast<size_t>(id - 1)] = life; }

 private:
  std::vector<Block> blocks_;
  std::array<std::atomic<int>, kBlocks> lives_ = {};
};

const std::vector<float> kPageVector{1.0F, -2.0F, 0.5F};

void AppendAll(Memory& memory, Library& library, std::atomic<bool>& done) {
  for (int64_t id = 1; id <= kBlocks; ++id) {
    const Block& block = library.block(id);
    const auto got = Append(memory, block);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ASSERT_EQ(*got, id);
    library.Set(id, kAppended);
    if (id % 3 == 0) {
      std::vector<int32_t> pages;
      std::vector<float> vectors;
      for (const PageRef& page : block.Pages()) {
        pages.push_back(page.page);
        vectors.insert(vectors.end(), kPageVector.begin(), kPageVector.end());
      }
      const Status added = memory.index().AddPageVectors(id, pages, vectors);
      EXPECT_TRUE(added.ok() || added.code() == StatusCode::kNotFound) << added.ToString();
    }
    if (id % 50 == 0) {
      ASSERT_TRUE(memory.index().Save().ok());
    }
  }
  done = true;
}

// Of those that were appended, but the first two and the newest of each stream.
void ForgetSome(Memory& memory, Library& library, const std::atomic<bool>& done) {
  std::mt19937_64 random(92);
  while (!done) {
    const auto id = static_cast<int64_t>(3 + random() % (kBlocks - 2));
    if (library.life(id) != kAppended) continue;
    bool newest = true;
    for (int64_t later = id + 1; later <= kBlocks; ++later) {
      newest = newest && !(library.life(later) == kAppended && library.block(later).stream == library.block(id).stream);
    }
    if (newest) continue;
    library.Set(id, kForgetting);
    const Status forgotten = memory.blocks().Forget(std::vector<int64_t>{id});
    ASSERT_TRUE(forgotten.ok()) << forgotten.ToString();
    library.Set(id, kForgotten);
  }
}

// One search, and what it may name.
void SearchOnce(const Memory& memory, const Library& library, std::mt19937_64& random) {
  std::array<Life, kBlocks> before = {};
  int64_t newest = 1;
  for (int64_t id = 1; id <= kBlocks; ++id) {
    before[static_cast<size_t>(id - 1)] = library.life(id);
    if (library.life(id) != kUnknown) newest = id;
  }
  // Mostly what comes just now.
  const int64_t asked =
      std::clamp<int64_t>(newest + 1 - static_cast<int64_t>(random() % (random() % 2 == 0 ? 3 : 40)), 1, kBlocks);
  const Block& block = library.block(asked);
  Question question = QuestionFor(block, static_cast<int64_t>(random() % block.ids.size()), 2.0F);
  question.ids[0] = static_cast<int32_t>(kOwnId + asked);
  SearchRequest request = question.Request();
  request.inputs["mean_query"].numbers = std::span(question.head_queries).first(kKvHeads * kDim);
  request.inputs["page_query"].numbers = kPageVector;
  const float mean_id = 20;
  request.inputs["mean_id"].numbers = {&mean_id, 1};
  constexpr std::array kKinds{IndexPart::kHeads, IndexPart::kLexical, IndexPart::kMeanPool, IndexPart::kHnsw,
                              IndexPart::kEmbedding};
  const auto kind = random() % 7;
  if (kind < kKinds.size()) request.kinds = {kKinds[kind]};
  if (kind == 5) request.kinds = {kMeanIds};
  if (kind == 6) {
    request.kinds = {kMeanIds};
    for (const IndexPart part : kKinds) request.kinds |= {part};
  }
  request.neighbours = static_cast<int32_t>(random() % 2);
  request.max_groups = 10'000;
  request.token_budget = 1'000'000;
  request.least_share = 0;
  if (random() % 3 == 0) request.filter.sources = {"book"};
  if (random() % 3 == 0) request.filter.tags = {"new"};
  const auto passes = [&request](const Block& of) {
    return (request.filter.sources.empty() || of.source == "book") &&
           (request.filter.tags.empty() || of.tags[0] == "new");
  };
  const auto result = memory.search().Find(request);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  std::map<int64_t, std::set<int32_t>> found;
  for (const FoundGroup& group : result->groups) {
    for (const PageRef& page : group.pages) {
      ASSERT_GE(page.block, 1);
      ASSERT_LE(page.block, kBlocks);
      const Block& of = library.block(page.block);
      const std::vector<PageRef> pages = of.Pages();
      ASSERT_LT(page.page, std::ssize(pages));
      EXPECT_EQ(page, pages[static_cast<size_t>(page.page)]);
      EXPECT_EQ(group.source, of.source);
      EXPECT_TRUE(passes(of));
      EXPECT_NE(before[static_cast<size_t>(page.block - 1)], kForgotten);
      found[page.block].insert(page.page);
    }
  }
  if (request.kinds.Has(IndexPart::kLexical) && passes(block)) {
    const auto count = std::ssize(block.Pages());
    const auto pages = std::ssize(found[asked]);
    EXPECT_TRUE(pages == 0 || pages == count) << pages << " of " << count;
    const bool there = before[static_cast<size_t>(asked - 1)] == kAppended && library.life(asked) == kAppended;
    if (there) {
      EXPECT_EQ(pages, count);
    }
  }
}

void SearchBeside(Memory& memory, const index::HeadsOptions& options) {
  ASSERT_TRUE(memory.index().SetRetrievalHeads(kHeads, options).ok());
  ASSERT_TRUE(memory.index().SetPageVectors({"encoder", 3, index::VectorSearch::kHnsw}).ok());
  Library library;
  std::atomic<bool> done = false;
  std::thread appender([&] { AppendAll(memory, library, done); });
  std::thread forgetter([&] { ForgetSome(memory, library, done); });
  std::vector<std::thread> searchers;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    searchers.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      while (!done) SearchOnce(memory, library, random);
      for (int i = 0; i < 20; ++i) SearchOnce(memory, library, random);
    });
  }
  appender.join();
  forgetter.join();
  for (std::thread& searcher : searchers) searcher.join();

  // At rest it is a memory that holds nothing else.
  const auto alone = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(alone->index().SetRetrievalHeads(kHeads, {.keys = options.keys}).ok());
  std::vector<int32_t> all_ids(50);
  for (int32_t id = 0; id < 50; ++id) all_ids[static_cast<size_t>(id)] = id;
  size_t pages = 0;
  for (int64_t id = 1; id <= kBlocks; ++id) {
    if (library.life(id) != kAppended) continue;
    ASSERT_TRUE(Append(*alone, library.block(id)).ok());
    pages += library.block(id).Pages().size();
  }
  EXPECT_EQ(memory.blocks().Pages().size(), pages);
  EXPECT_EQ(memory.search().Idf(all_ids), alone->search().Idf(all_ids));
  for (int64_t id = 1; id <= kBlocks; id += 7) {
    SearchRequest words;
    words.token_ids = library.block(id).ids;
    words.kinds = {IndexPart::kLexical};
    const auto found = memory.search().Find(words).value();
    const auto expected = alone->search().Find(words).value();
    ASSERT_EQ(found.groups.size(), expected.groups.size());
    for (size_t i = 0; i < found.groups.size(); ++i) {
      EXPECT_EQ(found.groups[i].span, expected.groups[i].span);
      EXPECT_EQ(found.groups[i].score, expected.groups[i].score);
    }
  }
}

TEST(OsMemoryBesideTest, SearchesFindWholeBlocksOnlyInRam) {
  const auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  SearchBeside(*memory, {});
}

TEST(OsMemoryBesideTest, SearchesFindWholeBlocksOnlyInAFolder) {
  const TemporaryFolder folder;
  const auto memory = Memory::Create(folder.path(), TestManifest()).value();
  SearchBeside(*memory, {.keys = index::KeyStorage::kInt8});
}

TEST(OsMemoryBesideTest, SearchesFindWholeBlocksOnlyAcrossTheTwoLevels) {
  const TemporaryFolder folder;
  const auto memory = Memory::Create(folder.path(), TestManifest()).value();
  SearchBeside(*memory, {.coarse_from = 150});
}

// Two searchers ask for the first block's page all the time while the second level comes.
TEST(OsMemoryBesideTest, TheTwoLevelsComeWhileSearchesGoOn) {
  const auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads, {.coarse_from = 100}).ok());
  std::mt19937_64 random(93);
  Block first = RandomBlock(random, 0, 0, 12);
  first.id = Append(*memory, first).value();
  const Question question = QuestionFor(first, 11, 6.0F);
  std::atomic<bool> stop = false;
  std::vector<std::thread> searchers;
  for (int i = 0; i < 2; ++i) {
    searchers.emplace_back([&] {
      while (!stop) {
        SearchRequest request = question.Request();
        request.kinds = {IndexPart::kHeads};
        request.neighbours = 0;
        const auto result = memory->search().Find(request);
        ASSERT_TRUE(result.ok());
        ASSERT_FALSE(result->groups.empty());
        const FoundGroup& group = result->groups[0];
        const auto best = std::ranges::max_element(group.page_scores) - group.page_scores.begin();
        EXPECT_EQ(group.pages[static_cast<size_t>(best)], first.Pages()[2]);
      }
    });
  }
  for (int i = 1; i < 100; ++i) {
    Block block = RandomBlock(random, 0, 12 * i, 12);
    for (float& key : block.keys) key *= 0.1F;  // the first page stands out along a few axes too
    ASSERT_TRUE(Append(*memory, block).ok());
  }
  stop = true;
  for (std::thread& searcher : searchers) searcher.join();
  EXPECT_EQ(memory->blocks().Pages().size(), 300U);
}

TEST(OsMemoryBesideTest, AppendsGoOnWhereACompactionWaitsForAVerify) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path() / "memory", TestManifest()).value(), 19, 12);
  Memory& memory = *filled.memory;
  std::mt19937_64 random(20);
  std::optional<std::jthread> compaction;
  std::atomic<bool> is_compacted = false;
  {
    const HeldReader verifier([&] { EXPECT_TRUE(memory.upkeep().Verify(false)->damage.empty()); });
    compaction.emplace([&] {
      EXPECT_TRUE(memory.upkeep().Compact().ok());
      is_compacted = true;
    });
    // Each takes the turn, which the compaction must not have.
    for (int i = 0; i < 40; ++i) {
      EXPECT_TRUE(Append(memory, RandomBlock(random, 77, 4 * i, 4, "beside")).ok());
      EXPECT_TRUE(memory.upkeep().Flush().ok());
      std::this_thread::yield();
    }
    EXPECT_FALSE(is_compacted);
  }
  compaction->join();
  EXPECT_EQ(memory.blocks().Infos({})->size(), 52U);
}

TEST(OsMemoryBesideTest, AppendsAndSearchesGoOnBesideAVerify) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path() / "memory", TestManifest()).value(), 17, 12);
  Memory& memory = *filled.memory;
  ASSERT_TRUE(memory.index().SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(memory.upkeep().Flush().ok());
  std::mt19937_64 random(18);
  const auto blocks = memory.upkeep().Stats()->blocks;
  std::optional<Result<store::VerifyReport>> report;
  {
    const HeldReader verifier([&] { report = memory.upkeep().Verify(false); });
    EXPECT_TRUE(Append(memory, RandomBlock(random, 77, 0, 20, "beside")).ok());
    EXPECT_TRUE(memory.upkeep().Flush().ok());
    EXPECT_TRUE(memory.blocks().Forget(std::vector<int64_t>{1}).ok());
    EXPECT_TRUE(memory.search().Find(QuestionFor(filled.blocks[3], 0, 2).Request()).ok());
  }
  ASSERT_TRUE(report->ok()) << report->status().ToString();
  EXPECT_TRUE((*report)->damage.empty());
  EXPECT_EQ((*report)->blocks, blocks);
  EXPECT_EQ(memory.blocks().Infos({})->size(), static_cast<size_t>(blocks));
}

// What a flush says is durable another process finds. Appends of other threads go on while one waits.
TEST(OsMemoryBesideTest, WhatAThreadHasFlushedAReaderFindsAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kEach = 12;
  const TemporaryFolder root;
  const std::filesystem::path folder = root.path() / "memory";
  const auto memory = Memory::Create(folder, TestManifest()).value();
  const auto reader = Memory::Open(folder, true).value();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(static_cast<uint64_t>(thread));
      for (int i = 0; i < kEach; ++i) {
        const Block block = RandomBlock(random, thread, 3 * i, 3);
        const auto id = Append(*memory, block);
        ASSERT_TRUE(id.ok()) << id.status().ToString();
        ASSERT_TRUE(memory->upkeep().Flush().ok());
        const auto info = reader->blocks().Info(*id);
        ASSERT_TRUE(info.ok()) << info.status().ToString();
        EXPECT_EQ(info->stream, thread);
        EXPECT_EQ(info->span, block.span);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory->blocks().Infos()->size(), size_t{kThreads * kEach});
}

}  // namespace
}  // namespace everlong::os
