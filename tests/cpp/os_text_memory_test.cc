// A memory of text alone: blocks of token ids without a payload, found by their words.
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

constexpr int kBlocks = 20;

store::Manifest TextManifest() {
  store::Manifest manifest = TestManifest();
  manifest.geometry.layers = manifest.geometry.kv_heads = manifest.geometry.head_dim = 0;
  return manifest;
}

// The same blocks in a memory with keys and values, and in one without.
struct Twins {
  Filled whole;
  std::unique_ptr<Memory> text;
};

Twins MakeTwins(std::unique_ptr<Memory> text, uint64_t seed) {
  Twins twins{FilledInRam(seed, kBlocks), std::move(text)};
  for (const Block& block : twins.whole.blocks) {
    const auto id = twins.text->blocks().Append(DraftOf(block));
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    EXPECT_EQ(*id, block.id);
  }
  EXPECT_TRUE(twins.text->upkeep().Flush().ok());
  return twins;
}

SearchRequest ByWords(const std::vector<int32_t>& ids) {
  SearchRequest request;
  request.token_ids = ids;
  request.kinds = {IndexPart::kLexical};
  return request;
}

// Pages, tokens and what words find, of every block of `blocks`.
void ExpectSameText(const Memory& text, const Memory& whole, const std::vector<Block>& blocks) {
  EXPECT_EQ(text.blocks().Pages(), whole.blocks().Pages());
  for (const Block& block : blocks) {
    const auto ids = text.blocks().TokenIds(block.stream, block.span);
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    EXPECT_EQ(*ids, block.ids);
    const auto found = text.search().Find(ByWords(block.ids));
    const auto expected = whole.search().Find(ByWords(block.ids));
    ASSERT_TRUE(found.ok() && expected.ok());
    ASSERT_FALSE(found->groups.empty());
    ExpectSame(*found, *expected);
  }
}

TEST(OsTextMemoryTest, FindsByWordsWhatAMemoryWithKeysFinds) {
  const Twins twins = MakeTwins(Memory::Create(std::nullopt, TextManifest()).value(), 1);
  ExpectSameText(*twins.text, *twins.whole.memory, twins.whole.blocks);
  const auto stats = twins.text->upkeep().Stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->payload_bytes, 0);
  EXPECT_EQ(stats->blocks, kBlocks);
  EXPECT_EQ(stats->pages, static_cast<int64_t>(twins.text->blocks().Pages().size()));
}

TEST(OsTextMemoryTest, IsKeptOpenedForkedExportedAndScrubbed) {
  const TemporaryFolder folder;
  Twins twins = MakeTwins(Memory::Create(folder.path() / "memory", TextManifest()).value(), 2);
  ASSERT_TRUE(twins.text->upkeep().Fork(folder.path() / "fork").ok());
  ASSERT_TRUE(twins.text->upkeep().Export(folder.path() / "file").ok());
  twins.text.reset();
  const std::vector<std::function<Result<std::unique_ptr<Memory>>()>> ways = {
      [&] { return Memory::Open(folder.path() / "memory", false); },
      [&] { return Memory::Open(folder.path() / "memory", true); },
      [&] { return Memory::Open(folder.path() / "fork", false); },
      [&] { return Memory::Import(folder.path() / "file", folder.path() / "imported"); },
      [&] { return Memory::Import(folder.path() / "file", std::nullopt); },
  };
  for (const auto& open : ways) {
    const auto memory = open();
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    ExpectSameText(**memory, *twins.whole.memory, twins.whole.blocks);
    const auto report = (*memory)->upkeep().Verify(false);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->blocks, kBlocks);
    EXPECT_TRUE(report->damage.empty());
  }
}

TEST(OsTextMemoryTest, WhatIsForgottenIsGone) {
  const TemporaryFolder folder;
  const Twins twins = MakeTwins(Memory::Create(folder.path() / "memory", TextManifest()).value(), 3);
  const Block& gone = twins.whole.blocks[7];
  for (Memory* memory : {twins.text.get(), twins.whole.memory.get()}) {
    ASSERT_TRUE(memory->blocks().Forget(std::vector<int64_t>{gone.id}).ok());
    ASSERT_TRUE(memory->upkeep().Compact().ok());
  }
  EXPECT_EQ(twins.text->blocks().TokenIds(gone.stream, gone.span).status().code(), StatusCode::kNotFound);
  std::vector<Block> kept = twins.whole.blocks;
  kept.erase(kept.begin() + 7);
  ExpectSameText(*twins.text, *twins.whole.memory, kept);
}

TEST(OsTextMemoryTest, RefusesKeysAndValuesAndWhatNeedsThem) {
  const Twins twins = MakeTwins(Memory::Create(std::nullopt, TextManifest()).value(), 4);
  Memory& memory = *twins.text;
  const Block& block = twins.whole.blocks.front();
  const std::vector<PageRef> pages = memory.blocks().Pages();

  std::mt19937_64 random(5);
  EXPECT_EQ(Append(memory, RandomBlock(random, 9, 0, 6)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory.index().SetRetrievalHeads(kHeads).code(), StatusCode::kInvalidArgument);
  for (const IndexPart kind : {IndexPart::kMeanPool, IndexPart::kHnsw}) {
    SearchRequest request = ByWords(block.ids);
    const std::vector<float> query(static_cast<size_t>(kKvHeads * kDim), 1.0F);
    request.kinds = {kind};
    request.inputs["mean_query"].numbers = query;
    EXPECT_EQ(memory.search().Find(request).status().code(), StatusCode::kInvalidArgument);
  }
  std::vector<float> keys(static_cast<size_t>(kKvHeads * pages[0].span.size() * kDim));
  EXPECT_EQ(memory.blocks().ReadKeys(pages[0], 0, keys).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory.blocks().Pages(), pages);
}

}  // namespace
}  // namespace everlong::os
