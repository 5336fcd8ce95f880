// What a memory keeps and gives back: blocks, pages, spans, tokens; refusals, reopening, threads.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base_allocation_failures.h"
#include "base_file_limit.h"
#include "everlong/index/vector_index.h"
#include "everlong/os/memory.h"
#include "os_memory_blocks.h"
#include "os_older_index.h"

namespace everlong::os {
namespace {

// Changes a byte of the block's first page, in the first layer.
void DamageOnDisk(const std::filesystem::path& folder, const Block& block) {
  const std::vector<std::byte> payload = block.Payload();
  const std::filesystem::path segment = folder / "segments" / "000001.kvseg";
  std::string bytes(static_cast<size_t>(std::filesystem::file_size(segment)), '\0');
  std::ifstream(segment, std::ios::binary).read(bytes.data(), std::ssize(bytes));
  const size_t at = bytes.find({reinterpret_cast<const char*>(payload.data()), 64});
  ASSERT_NE(at, std::string::npos);
  std::fstream file(segment, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(~bytes[at]));
}

TEST(OsMemoryTest, AppendAssignsIdsAndBlocksComeBack) {
  const Filled filled = FilledInRam(1);
  const auto infos = filled.memory->blocks().Infos();
  ASSERT_TRUE(infos.ok());
  ASSERT_EQ(infos->size(), filled.blocks.size());
  std::vector<PageRef> pages;
  for (size_t i = 0; i < infos->size(); ++i) {
    const store::BlockInfo& info = (*infos)[i];
    const Block& block = filled.blocks[i];
    EXPECT_EQ(info.id, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(info.span, block.span);
    EXPECT_EQ(info.sink_tokens, block.sink_tokens);
    EXPECT_EQ(info.source, block.source);
    EXPECT_EQ(info.tags, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(info.payload_bytes, static_cast<int64_t>(block.Payload().size()));
    const auto of_block = block.Pages();
    EXPECT_EQ(info.pages, static_cast<int32_t>(of_block.size()));
    pages.insert(pages.end(), of_block.begin(), of_block.end());
  }
  EXPECT_EQ(filled.memory->blocks().Pages(), pages);
}

// A writer's index knows who passes, and looks these up. A reader's knows what there was when it was opened. The pages
// of a list are the list.
TEST(OsMemoryTest, AListingByTheIndexIsThatOfAPassOverAllRows) {
  const TemporaryFolder folder;
  const auto memory = Memory::Create(folder.path() / "memory", TestManifest()).value();
  std::mt19937_64 random(23);
  for (int i = 0; i < 60; ++i) {
    Block block = RandomBlock(random, i % 3, i, 1, "book " + std::to_string(i % 20));
    block.tags = {"topic " + std::to_string(i % 25), "state=" + std::to_string(i % 30), "every"};
    block.role = static_cast<Role>(i % kRoles);
    store::BlockDraft draft = DraftOf(block);
    const std::vector<std::byte> payload = block.Payload();
    draft.payload = payload;
    draft.created_at = 100 + i;
    ASSERT_TRUE(memory->blocks().Append(draft).ok());
  }
  ASSERT_TRUE(memory->upkeep().Flush().ok());
  const auto early = Memory::Open(folder.path() / "memory", true).value();
  ASSERT_TRUE(memory->blocks().AddTags(8, std::vector<std::string>{"state=0"}).ok());
  ASSERT_TRUE(memory->blocks().SetTags(9, std::vector<std::string>{"topic 3"}).ok());
  ASSERT_TRUE(memory->blocks().Forget(std::vector<int64_t>{4, 29}).ok());
  for (int i = 60; i < 64; ++i) {
    Block block = RandomBlock(random, 5, i, 1, "book " + std::to_string(i % 4 + 3));
    block.created_at = 100 + i;
    ASSERT_TRUE(Append(*memory, block).ok());
  }
  ASSERT_TRUE(memory->upkeep().Flush().ok());
  const auto reader = Memory::Open(folder.path() / "memory", true).value();
  const auto listed = [](const Memory& of, const SearchFilter& filter, const BlockSlice& slice = {}) {
    std::vector<std::pair<int64_t, std::vector<std::string>>> blocks;
    const std::vector<store::BlockInfo> infos = of.blocks().Infos(filter, slice).value();
    for (const store::BlockInfo& info : infos) blocks.emplace_back(info.id, info.tags);
    return blocks;
  };
  const auto paged = [&](const Memory& of, const SearchFilter& filter, int64_t most) {
    auto blocks = listed(of, filter, {.most = most});
    while (true) {
      if (blocks.empty()) return blocks;
      const auto more = listed(of, filter, {.behind = blocks.back().first, .most = most});
      EXPECT_LE(std::ssize(more), most);
      if (more.empty()) return blocks;
      blocks.insert(blocks.end(), more.begin(), more.end());
    }
  };
  size_t found = 0;
  for (const SearchFilter& filter : std::vector<SearchFilter>{{},
                                                              {.sources = {"book 3"}},
                                                              {.sources = {"book 3", "book 8", "none"}},
                                                              {.sources = {"none"}},
                                                              {.tags = {"topic 3"}},
                                                              {.tags = {"topic 3", "every"}},
                                                              {.tags = {"every"}},
                                                              {.newest_tags = {"state=0"}},
                                                              {.since = 105, .before = 109},
                                                              {.since = 110, .before = 105},
                                                              {.sources = {"book 7"}, .roles = Roles{Role::kAsked}},
                                                              {.happened_since = 120, .happened_before = 124}}) {
    const auto blocks = listed(*memory, filter);
    EXPECT_EQ(blocks, listed(*reader, filter));
    EXPECT_EQ(blocks, listed(*early, filter));
    for (const Memory* const of : {memory.get(), reader.get(), early.get()}) {
      for (const int64_t most : {1, 2, 7, 100}) EXPECT_EQ(blocks, paged(*of, filter, most));
      auto among = blocks;
      std::erase_if(among,
                    [](const auto& block) { return block.first != 9 && block.first != 44 && block.first != 62; });
      EXPECT_EQ(among, listed(*of, filter, {.among = std::vector<int64_t>{62, 44, 9, 9, 4, 29, 77}}));
    }
    found += blocks.size();
  }
  EXPECT_GT(found, 120U);
  EXPECT_EQ(memory->blocks().Infos({}, {.most = 0}).status().code(), StatusCode::kInvalidArgument);
}

TEST(OsMemoryTest, PagesAndKeysComeBackByteForByte) {
  const Filled filled = FilledInRam(2);
  std::vector<PageRef> wanted;
  std::vector<std::byte> expected;
  for (auto block = filled.blocks.rbegin(); block != filled.blocks.rend(); ++block) {
    const std::vector<PageRef> pages = block->Pages();
    wanted.insert(wanted.end(), pages.begin(), pages.end());
    const std::vector<std::byte> payload = block->Payload();
    expected.insert(expected.end(), payload.begin(), payload.end());
  }
  std::vector<std::byte> got(expected.size());
  ASSERT_TRUE(filled.memory->blocks().ReadPages(wanted, got).ok());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(filled.memory->blocks().ReadPages(wanted, std::span(got).first(got.size() - 1)).code(),
            StatusCode::kInvalidArgument);

  for (const Block& block : filled.blocks) {
    for (const PageRef& page : block.Pages()) {
      const auto tokens = page.span.size();
      std::vector<float> keys(static_cast<size_t>(kKvHeads * tokens * kDim));
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        ASSERT_TRUE(filled.memory->blocks().ReadKeys(page, layer, keys).ok());
        for (int32_t head = 0; head < kKvHeads; ++head) {
          const float* expected_keys = block.Key(layer, head, page.span.begin - block.span.begin);
          EXPECT_TRUE(std::equal(expected_keys, expected_keys + tokens * kDim, keys.data() + head * tokens * kDim));
        }
      }
      EXPECT_EQ(filled.memory->blocks().ReadKeys(page, kLayers, keys).code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(filled.memory->blocks().ReadKeys(page, -1, keys).code(), StatusCode::kInvalidArgument);
    }
  }
  PageRef wrong = wanted[0];
  wrong.span.begin -= 1;
  std::vector<float> keys(64);
  EXPECT_EQ(filled.memory->blocks().ReadKeys(wrong, 0, keys).code(), StatusCode::kInvalidArgument);
  wrong = wanted[0];
  wrong.sink_tokens += 1;
  EXPECT_EQ(filled.memory->blocks().ReadKeys(wrong, 0, keys).code(), StatusCode::kInvalidArgument);
  wrong = wanted[0];
  wrong.block = 1000;
  EXPECT_EQ(filled.memory->blocks().ReadKeys(wrong, 0, keys).code(), StatusCode::kNotFound);
}

TEST(OsMemoryTest, RefusedBlocksLeaveNothingBehind) {
  auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
  std::mt19937_64 random(3);
  const Block good = RandomBlock(random, 0, 10, 6);
  const auto refuses = [&](auto change) {
    Block block = good;
    change(block);
    const auto id = Append(*memory, block);
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
  };
  refuses([](Block& b) { b.keys[static_cast<size_t>(3 * 6 * kDim)] = std::numeric_limits<float>::quiet_NaN(); });
  refuses([](Block& b) { b.keys[static_cast<size_t>(3 * 6 * kDim)] = 3.4e38F; });  // infinite as a bf16
  refuses([](Block& b) { b.ids.pop_back(); });
  refuses([](Block& b) { b.ids[2] = -1; });
  refuses([](Block& b) { b.stream = -1; });
  refuses([](Block& b) { b.sink_tokens = 7; });
  refuses([](Block& b) { b.sink_tokens = -1; });
  refuses([](Block& b) { b.span = {-6, 0}; });
  store::BlockDraft short_payload;
  short_payload.span = good.span;
  short_payload.token_ids = good.ids;
  const std::vector<std::byte> payload = good.Payload();
  short_payload.payload = std::span(payload).first(payload.size() - 4);
  EXPECT_EQ(memory->blocks().Append(short_payload).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(memory->blocks().Infos()->empty());
  EXPECT_TRUE(memory->blocks().Pages().empty());

  ASSERT_TRUE(Append(*memory, good).ok());
  EXPECT_EQ(memory->blocks().StreamEnd(0), 16);
  EXPECT_EQ(memory->blocks().StreamEnd(1), 0);
  refuses([](Block&) {});
  refuses([](Block& b) { b.span = {4, 10}; });
  EXPECT_EQ(memory->blocks().Infos()->size(), 1U);

  EXPECT_EQ(memory->index().SetRetrievalHeads({{kLayers, 0, 0}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->index().SetRetrievalHeads({{0, 0, kKvHeads}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->index().retrieval_heads(), kHeads);
  store::Manifest manifest = TestManifest();
  manifest.geometry.codec = "int3";
  EXPECT_EQ(Memory::Create(std::nullopt, manifest).status().code(), StatusCode::kInvalidArgument);
  manifest = TestManifest();
  manifest.geometry.kv_heads = 1 << 16;
  manifest.geometry.head_dim = 1 << 16;
  EXPECT_EQ(Memory::Create(std::nullopt, manifest).status().code(), StatusCode::kInvalidArgument);
}

TEST(OsMemoryTest, AMeanQueryIsOneVector) {
  const Filled filled = FilledInRam(37, 3);
  const std::vector<float> two(static_cast<size_t>(2 * kKvHeads * kDim), 1.0F);
  for (const IndexPart kind : {IndexPart::kMeanPool, IndexPart::kHnsw}) {
    SearchRequest request;
    request.kinds = {kind};
    request.inputs["mean_query"].numbers = two;
    const Status refused = filled.memory->search().Find(request).status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("mean_query has 32 numbers, expected 16"), std::string::npos) << refused.message();
    request.inputs["mean_query"].numbers = std::span(two).first(two.size() / 2);
    EXPECT_TRUE(filled.memory->search().Find(request).ok());
  }
}

// Another program's file may hold a memory that no Memory can be opened over.
TEST(OsMemoryTest, AnImportThatIsNoMemoryMakesNothing) {
  const TemporaryFolder folder;
  std::mt19937_64 random(38);
  const Block block = RandomBlock(random, 0, 0, 6);
  const std::vector<std::byte> payload = block.Payload();
  for (const std::string codec : {"int3", "bf16"}) {  // the payload is of fp32
    const auto store = store::MemoryStore::Create(std::nullopt, TestManifest(codec)).value();
    const std::vector<int64_t> page_bytes{4 * kLayers * 2 * kKvHeads * 4 * kDim, 4 * kLayers * 2 * kKvHeads * 2 * kDim};
    store::BlockDraft draft;
    draft.span = block.span;
    draft.token_ids = block.ids;
    draft.payload = payload;
    draft.page_bytes = page_bytes;
    ASSERT_TRUE(store->Submit(draft).ok());
    ASSERT_TRUE(store->Export(folder.path() / codec).ok());
    EXPECT_EQ(Memory::Import(folder.path() / codec, folder.path() / "made").status().code(), StatusCode::kCorrupt);
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "made"));
  }
}

// As another program may write them, block by block.
TEST(OsMemoryTest, BlocksThatNobodyCouldHaveAppendedAreCorrupt) {
  std::mt19937_64 random(40);
  const TemporaryFolder folder;
  int made = 0;
  const auto refuses = [&](const std::vector<Block>& blocks) {
    const std::filesystem::path memory = folder.path() / ("memory" + std::to_string(made));
    const std::filesystem::path file = folder.path() / ("file" + std::to_string(made++));
    {
      const auto store = store::MemoryStore::Create(memory, TestManifest()).value();
      for (const Block& block : blocks) {
        const std::vector<std::byte> payload = block.Payload();
        const std::vector<int64_t> page_bytes{std::ssize(payload)};
        store::BlockDraft draft = DraftOf(block);
        draft.payload = payload;
        draft.page_bytes = page_bytes;
        ASSERT_TRUE(store->Submit(draft).ok());
      }
      ASSERT_TRUE(store->Export(file).ok());
    }
    EXPECT_EQ(Memory::Open(memory, false).status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(Memory::Open(memory, true).status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(Memory::Import(file, folder.path() / "made").status().code(), StatusCode::kCorrupt);
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "made"));
  };
  const Block first = RandomBlock(random, 0, 4, 4);
  refuses({first, RandomBlock(random, 0, 4, 3)});
  refuses({first, RandomBlock(random, 0, 7, 3)});
  refuses({first, RandomBlock(random, 0, 0, 4)});
  refuses({RandomBlock(random, -1, 0, 4)});
  Block negative = first;
  negative.ids[2] = -1;
  refuses({negative});
}

TEST(OsMemoryTest, AForkTakesNothingAway) {
  const TemporaryFolder folder;
  const Filled filled = Fill(Memory::Create(folder.path() / "memory", TestManifest()).value(), 39, 4);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const std::filesystem::path there = folder.path() / "fork" / "index";
  std::filesystem::create_directories(there);
  std::ofstream(there / "heads") << "somebody's";
  EXPECT_EQ(filled.memory->upkeep().Fork(folder.path() / "fork").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(BytesOf(there / "heads"), "somebody's");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "fork" / "manifest.json"));
  ASSERT_TRUE(filled.memory->upkeep().Fork(folder.path() / "another").ok());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "another" / "index" / "heads"));
}

// Stored, and not in the indexes: nothing that needs both goes on, and a memory opened anew has the block.
TEST(OsMemoryTest, ABlockThatCannotBeIndexedBreaksTheMemoryUntilItIsOpenedAnew) {
  const TemporaryFolder folder;
  int64_t blocks = 0;
  {
    const auto memory = Memory::Create(folder.path(), TestManifest()).value();
    ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    std::mt19937_64 random(36);
    Status appended;
    {
      const AlignedArraysFail no_keys;
      for (; appended.ok() && blocks < 1000; ++blocks) {
        appended = Append(*memory, RandomBlock(random, 0, 4 * blocks, 4)).status();
      }
    }
    EXPECT_EQ(appended.code(), StatusCode::kCapacity);
    EXPECT_NE(appended.message().find("block " + std::to_string(blocks)), std::string::npos) << appended.message();
    const auto refused = [&appended](const Status& status) { EXPECT_EQ(status.ToString(), appended.ToString()); };
    refused(Append(*memory, RandomBlock(random, 0, 4 * blocks, 4)).status());
    refused(memory->upkeep().Compact().status());
    refused(memory->upkeep().Fork(folder.path() / "fork"));
    refused(memory->index().Save());
    refused(memory->blocks().Forget(std::vector<int64_t>{1}));
  }
  const auto memory = Memory::Open(folder.path(), false).value();
  EXPECT_EQ(std::ssize(memory->blocks().Pages()), blocks);
  EXPECT_TRUE(memory->upkeep().Compact().ok());
}

// Softmax mass of every page in fp64, from its definition (index/heads_index.h).
// Spans, recent and random pages against the plain list of what was appended.
TEST(OsMemoryTest, SpansAgreeWithAPlainModel) {
  Filled filled = FilledInRam(11, 40);
  std::mt19937_64 random(12);
  const std::vector<int64_t> forgotten{3, 11, 12, 30};
  ASSERT_TRUE(filled.memory->blocks().Forget(forgotten).ok());
  EXPECT_EQ(filled.memory->blocks().Forget(std::vector<int64_t>{1, 3}).code(), StatusCode::kNotFound);
  std::erase_if(filled.blocks, [&](const Block& block) { return std::ranges::count(forgotten, block.id) > 0; });

  std::map<int64_t, std::map<int64_t, std::pair<int32_t, PageRef>>> tokens;  // stream -> token -> id, page
  for (const Block& block : filled.blocks) {
    for (const PageRef& page : block.Pages()) {
      for (int64_t t = page.span.begin; t < page.span.end; ++t) {
        tokens[block.stream][t] = {block.ids[static_cast<size_t>(t - block.span.begin)], page};
      }
    }
  }
  int found = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const auto stream = static_cast<int64_t>(random() % 4);
    const auto begin = static_cast<int64_t>(random() % 110);
    const TokenSpan span{begin, begin + static_cast<int64_t>(random() % 30)};
    std::vector<PageRef> pages;
    std::vector<int32_t> ids;
    bool complete = true;
    for (int64_t t = span.begin; t < span.end; ++t) {
      const auto token = tokens[stream].find(t);
      complete &= token != tokens[stream].end();
      if (!complete) break;
      ids.push_back(token->second.first);
      if (pages.empty() || pages.back() != token->second.second) pages.push_back(token->second.second);
    }
    const auto got = filled.memory->blocks().PagesOf(stream, span);
    const auto got_ids = filled.memory->blocks().TokenIds(stream, span);
    if (!complete) {
      EXPECT_EQ(got.status().code(), StatusCode::kNotFound);
      EXPECT_EQ(got_ids.status().code(), StatusCode::kNotFound);
      continue;
    }
    ++found;
    ASSERT_TRUE(got.ok() && got_ids.ok());
    EXPECT_EQ(*got, pages);
    EXPECT_EQ(*got_ids, ids);
  }
  EXPECT_GT(found, 200);
  EXPECT_EQ(filled.memory->blocks().PagesOf(0, {5, 4}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(filled.memory->blocks().PagesOf(0, {-1, 4}).status().code(), StatusCode::kInvalidArgument);

  for (int trial = 0; trial < 200; ++trial) {
    const auto stream = static_cast<int64_t>(random() % 4);
    const auto before = static_cast<int64_t>(random() % 120);
    const auto count = static_cast<int32_t>(random() % 6);
    std::vector<const Block*> recent;
    for (const Block& block : filled.blocks) {
      if (block.stream == stream && block.span.end <= before) recent.push_back(&block);
    }
    if (std::ssize(recent) > count) recent.erase(recent.begin(), recent.end() - count);
    std::vector<PageRef> pages;
    for (const Block* block : recent) {
      const auto of_block = block->Pages();
      pages.insert(pages.end(), of_block.begin(), of_block.end());
    }
    EXPECT_EQ(*filled.memory->search().RecentPages(stream, before, count), pages);
  }
  for (int64_t stream = 0; stream < 4; ++stream) {
    EXPECT_EQ(filled.memory->blocks().StreamEnd(stream),
              tokens[stream].empty() ? 0 : tokens[stream].rbegin()->first + 1);
  }
}

TEST(OsMemoryTest, RandomPagesAreADrawWithoutReplacement) {
  const Filled filled = FilledInRam(13, 12);
  std::vector<PageRef> allowed;
  for (const PageRef& page : filled.memory->blocks().Pages()) {
    const Block& block = filled.blocks[static_cast<size_t>(page.block - 1)];
    const bool only_sinks = page.span.end - block.span.begin <= block.sink_tokens;
    if (!only_sinks && !(page.stream == 1 && page.span.begin >= 12)) allowed.push_back(page);
  }
  ASSERT_GT(allowed.size(), 10U);
  const auto all = filled.memory->search().RandomPages(1, 12, 1000, 1);
  ASSERT_EQ(all->size(), allowed.size());
  EXPECT_TRUE(std::ranges::is_permutation(*all, allowed));
  EXPECT_EQ(*filled.memory->search().RandomPages(1, 12, 1000, 1), *all) << "the same seed, the same draw";
  EXPECT_NE(*filled.memory->search().RandomPages(1, 12, 1000, 2), *all);

  std::vector<int> drawn(allowed.size(), 0);
  constexpr int kDraws = 4000;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    const auto pages = filled.memory->search().RandomPages(1, 12, 4, seed);
    ASSERT_EQ(pages->size(), 4U);
    for (const PageRef& page : *pages) ++drawn[static_cast<size_t>(std::ranges::find(allowed, page) - allowed.begin())];
  }
  const double expected = 4.0 * kDraws / static_cast<double>(allowed.size());
  for (const int count : drawn) EXPECT_NEAR(count, expected, 6 * std::sqrt(expected)) << "every page alike";
  EXPECT_EQ(filled.memory->search().RandomPages(1, 12, -1, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(OsMemoryTest, ForgottenBlocksAreGoneAndTheRestIsFoundStill) {
  const Filled filled = FilledInRam(14);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const Block& gone = filled.blocks[7];
  ASSERT_TRUE(filled.memory->blocks().Forget(std::vector<int64_t>{gone.id}).ok());
  for (const PageRef& page : filled.memory->blocks().Pages()) EXPECT_NE(page.block, gone.id);
  std::vector<std::byte> out(gone.Payload().size());
  EXPECT_EQ(filled.memory->blocks().ReadPages(gone.Pages(), out).code(), StatusCode::kNotFound);

  // New heads are read from what is left; the numbering of pages stays in step.
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  const Block& kept = filled.blocks[15];
  const int64_t token = kept.span.size() - 1;
  const Question question = QuestionFor(kept, token, 4.0F);
  SearchRequest request = question.Request();
  request.kinds = {IndexPart::kHeads};
  request.neighbours = 0;
  const auto result = filled.memory->search().Find(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->groups.empty());
  EXPECT_EQ(result->groups[0].stream, kept.stream);
  EXPECT_TRUE(result->groups[0].span.Overlaps({kept.span.begin + token, kept.span.end}));
}

// The indexes' room as well: what is filled, forgotten and filled again holds as much each time.
TEST(OsMemoryTest, WhatIsForgottenGivesItsRoomBack) {
  const TemporaryFolder folder;
  const auto ram = Memory::Create(std::nullopt, TestManifest(), {.host_bytes = 1'000'000}).value();
  const auto disk = Memory::Create(folder.path(), TestManifest()).value();
  for (Memory* memory : {ram.get(), disk.get()}) {
    ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    std::mt19937_64 random(40);
    int64_t first = 0;
    int64_t first_bytes = 0;
    for (int round = 0; round < 5; ++round) {
      std::vector<int64_t> ids;
      while (std::ssize(ids) < 200) {
        const auto id = Append(*memory, RandomBlock(random, round, 12 * std::ssize(ids), 12));
        if (id.status().code() == StatusCode::kCapacity) break;
        ASSERT_TRUE(id.ok()) << id.status().ToString();
        ids.push_back(*id);
      }
      ASSERT_TRUE(memory->upkeep().Flush().ok());
      const int64_t bytes = memory->upkeep().Stats()->index_bytes;
      if (round == 0) {
        first = std::ssize(ids);
        first_bytes = bytes;
        EXPECT_GT(first, 20);
      }
      EXPECT_GE(std::ssize(ids), first * 9 / 10) << round;
      EXPECT_LE(bytes, first_bytes * 11 / 10) << round;
      if (round == 4) {  // most of it: the rest is found as before
        const std::vector<int64_t> most(ids.begin(), ids.end() - 2);
        ASSERT_TRUE(memory->blocks().Forget(most).ok());
        ASSERT_TRUE(memory->upkeep().Compact().ok());
        EXPECT_EQ(memory->blocks().Pages().size(), 6U);
        continue;
      }
      ASSERT_TRUE(memory->blocks().Forget(ids).ok());
      ASSERT_TRUE(memory->upkeep().Compact().ok());
      EXPECT_TRUE(memory->blocks().Pages().empty());
    }
    EXPECT_EQ(memory->index().retrieval_heads(), kHeads);
  }
}

TEST(OsMemoryTest, AReopenedMemoryAnswersAsTheOpenOneDid) {
  const TemporaryFolder folder;
  std::vector<SearchResult> answers;
  std::vector<Question> questions;
  std::vector<PageRef> pages;
  std::vector<std::byte> bytes;
  {
    const Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 15, 25);
    ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
    for (const Block& block : filled.blocks) {
      questions.push_back(QuestionFor(block, 0, 1.0F));
      answers.push_back(filled.memory->search().Find(questions.back().Request()).value());
      bytes.resize(bytes.size() + block.Payload().size());
    }
    pages = filled.memory->blocks().Pages();
    ASSERT_TRUE(filled.memory->blocks().ReadPages(pages, bytes).ok());
    ASSERT_TRUE(filled.memory->SetAttribute("profile", "{}").ok());
    EXPECT_EQ(Memory::Open(folder.path(), false).status().code(), StatusCode::kBusy);
    EXPECT_EQ(Memory::Create(folder.path(), TestManifest()).status().code(), StatusCode::kAlreadyExists);
  }
  for (const bool read_only : {false, true}) {
    auto opened = Memory::Open(folder.path(), read_only);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    Memory& memory = **opened;
    EXPECT_EQ(memory.read_only(), read_only);
    EXPECT_EQ(memory.manifest().attributes.at("profile"), "{}");
    EXPECT_EQ(memory.layout().page_tokens, kPageTokens);
    ASSERT_TRUE(memory.index().SetRetrievalHeads(kHeads).ok());
    EXPECT_EQ(memory.blocks().Pages(), pages);
    std::vector<std::byte> again(bytes.size());
    ASSERT_TRUE(memory.blocks().ReadPages(pages, again).ok());
    EXPECT_EQ(again, bytes);
    for (size_t i = 0; i < questions.size(); ++i) ExpectSame(*memory.search().Find(questions[i].Request()), answers[i]);
    EXPECT_GT(memory.upkeep().Stats()->disk_bytes, static_cast<int64_t>(bytes.size()));
  }
  auto reader = Memory::Open(folder.path(), true).value();
  std::mt19937_64 random(16);
  EXPECT_EQ(Append(*reader, RandomBlock(random, 8, 0, 4)).status().code(), StatusCode::kReadOnly);
  EXPECT_EQ(reader->blocks().Forget(std::vector<int64_t>{1}).code(), StatusCode::kReadOnly);
  EXPECT_EQ(Memory::Open(folder.path() / "none", false).status().code(), StatusCode::kNotFound);
}

TEST(OsMemoryTest, TheHostBudgetPaysTheIndexesFirst) {
  constexpr int64_t kHostBytes = 700'000;
  const TemporaryFolder folder;
  const Filled filled =
      Fill(Memory::Create(folder.path(), TestManifest(), {.host_bytes = kHostBytes}).value(), 16, 600);
  Memory& memory = *filled.memory;
  // An eighth is the catalog's.
  const auto payload_left = [](const store::StoreStats& stats) {
    return std::max(kHostBytes - kHostBytes / 8 - stats.index_bytes, kHostBytes / store::kLeastPayloadShare);
  };
  const auto payload = [](const store::StoreStats& stats) { return stats.host_bytes - stats.catalog_bytes; };
  const store::StoreStats before = memory.upkeep().Stats().value();
  EXPECT_GT(before.payload_bytes, kHostBytes);
  EXPECT_GT(before.index_bytes, 0);
  EXPECT_LE(payload(before), payload_left(before));
  EXPECT_GT(payload(before), payload_left(before) * 9 / 10);  // what is left is used

  ASSERT_TRUE(memory.index().SetRetrievalHeads(kHeads).ok());
  const store::StoreStats after = memory.upkeep().Stats().value();
  // Two key heads in bf16, and pages of 4 tokens filled up to 32.
  EXPECT_GE(after.index_bytes - before.index_bytes, after.pages * 2 * 32 * kDim * 2);
  EXPECT_LE(payload(after), payload_left(after));
  std::vector<std::byte> bytes(static_cast<size_t>(after.payload_bytes));
  ASSERT_TRUE(memory.blocks().ReadPages(memory.blocks().Pages(), bytes).ok());
  EXPECT_LE(payload(memory.upkeep().Stats().value()), payload_left(after));

  const PageVectorOptions options{"encoder", 64};
  ASSERT_TRUE(memory.index().SetPageVectors(options).ok());
  const std::vector<float> vector(64, 1.0F);
  const int32_t first_page = 0;
  for (const Block& block : filled.blocks) {
    ASSERT_TRUE(memory.index().AddPageVectors(block.id, {&first_page, 1}, vector).ok());
  }
  const store::StoreStats embedded = memory.upkeep().Stats().value();
  EXPECT_GE(embedded.index_bytes - after.index_bytes, std::ssize(filled.blocks) * 64 * 4);
  EXPECT_LE(payload(embedded), payload_left(embedded));
}

TEST(OsMemoryTest, AReaderOutlivesWhatItsWriterForgets) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 17, 10);
  auto reader = Memory::Open(folder.path(), true).value();
  ASSERT_TRUE(filled.memory->blocks().Forget(std::vector<int64_t>{4}).ok());
  ASSERT_TRUE(reader->index().SetRetrievalHeads(kHeads).ok());
  const Block& kept = filled.blocks[8];
  const Question question = QuestionFor(kept, kept.span.size() - 1, 4.0F);
  SearchRequest request = question.Request();
  const std::vector<float> mean_query(static_cast<size_t>(kKvHeads * kDim), 1.0F);
  request.inputs["mean_query"].numbers = mean_query;
  request.kinds |= {IndexPart::kMeanPool};
  const auto result = reader->search().Find(request);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_FALSE(result->groups.empty());
  std::vector<std::byte> out(filled.blocks[3].Payload().size());
  EXPECT_EQ(reader->blocks().ReadPages(filled.blocks[3].Pages(), out).code(), StatusCode::kNotFound);
}

// Searches, weights and reads after forgetting are those of a memory that is opened without the forgotten blocks.
TEST(OsMemoryTest, ForgottenBlocksLeaveNoTraceInTheIndexes) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 23, 30);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(filled.memory->blocks().Forget(std::vector<int64_t>{2, 3, 11, 29}).ok());
  ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
  std::mt19937_64 random(24);
  ASSERT_TRUE(Append(*filled.memory, RandomBlock(random, 9, 0, 13)).ok());
  ASSERT_TRUE(filled.memory->upkeep().Flush().ok());
  const auto fresh = Memory::Open(folder.path(), true).value();
  ASSERT_TRUE(fresh->index().SetRetrievalHeads(kHeads).ok());
  std::vector<int32_t> all_ids(50);
  std::iota(all_ids.begin(), all_ids.end(), 0);
  EXPECT_EQ(filled.memory->search().Idf(all_ids), fresh->search().Idf(all_ids));
  EXPECT_EQ(filled.memory->blocks().Pages(), fresh->blocks().Pages());
  for (const Block& block : filled.blocks) {
    const Question question = QuestionFor(block, block.span.size() - 1, 2.0F);
    const auto found = filled.memory->search().Find(question.Request());
    const auto expected = fresh->search().Find(question.Request());
    ASSERT_EQ(found->groups.size(), expected->groups.size());
    for (size_t i = 0; i < found->groups.size(); ++i) EXPECT_EQ(found->groups[i].pages, expected->groups[i].pages);
    EXPECT_NEAR(found->top_mass, expected->top_mass, 1e-5);
    SearchRequest words = question.Request();
    words.kinds = {IndexPart::kLexical};
    ExpectSame(*filled.memory->search().Find(words), *fresh->search().Find(words));
  }
}

// Graphs of vectors too, where a removed one stays as it was until its room is used again.
TEST(OsMemoryTest, ForgottenVectorsAreInNoFile) {
  const TemporaryFolder folder;
  constexpr std::array<float, 8> kSecret{0.5F, 0, -0.5F, 0, 0.5F, 0, 0, -0.5F};  // of length 1, as the index keeps it
  const std::string_view secret{reinterpret_cast<const char*>(kSecret.data()), sizeof kSecret};
  const std::filesystem::path embedding = folder.path() / "index" / "embedding";
  const std::filesystem::path hnsw = folder.path() / "index" / "hnsw";
  const std::vector<float> mean_query(static_cast<size_t>(kKvHeads * kDim), 1.0F);
  SearchRequest request;
  request.inputs["mean_query"].numbers = mean_query;
  request.kinds = {IndexPart::kHnsw};
  {
    const Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 31, 20);
    ASSERT_TRUE(filled.memory->index().SetPageVectors({"encoder", 8, index::VectorSearch::kHnsw}).ok());
    std::mt19937_64 random(32);
    const std::vector<int32_t> first_page{0};
    for (const Block& block : filled.blocks) {
      std::vector<float> vector(kSecret.begin(), kSecret.end());
      if (block.id != 7) std::ranges::generate(vector, [&] { return static_cast<float>(random() % 100) - 50; });
      ASSERT_TRUE(filled.memory->index().AddPageVectors(block.id, first_page, vector).ok());
    }
    ASSERT_TRUE(filled.memory->search().Find(request).ok());
    ASSERT_TRUE(filled.memory->index().Save().ok());
    ASSERT_NE(BytesOf(embedding).find(secret), std::string::npos);
    ASSERT_TRUE(filled.memory->blocks().Forget(std::vector<int64_t>{7}).ok());
    ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
    ASSERT_TRUE(filled.memory->index().Save().ok());
    EXPECT_EQ(BytesOf(embedding).find(secret), std::string::npos);
    // Saved between the two as well.
    ASSERT_TRUE(filled.memory->blocks().Forget(std::vector<int64_t>{8}).ok());
    ASSERT_TRUE(filled.memory->index().Save().ok());
    ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
    EXPECT_EQ(index::LoadHnswIndex(hnsw).value()->size(), 18);
  }
  const auto opened = Memory::Open(folder.path(), false).value();
  ASSERT_TRUE(opened->index().SetPageVectors({"encoder", 8, index::VectorSearch::kHnsw}).ok());
  EXPECT_TRUE(opened->index().PagesWithoutVectors().empty());
  EXPECT_TRUE(opened->search().Find(request).ok());
  EXPECT_TRUE(opened->index().TakeMessages().empty());
}

// Whoever compacts a memory need not have its encoder; what that computed of other blocks is minutes of work.
TEST(OsMemoryTest, ACompactionWithoutTheEncoderKeepsTheVectorsOfOthers) {
  for (const auto search : {index::VectorSearch::kFlat, index::VectorSearch::kHnsw, index::VectorSearch::kDnii}) {
    const TemporaryFolder folder;
    const PageVectorOptions options{"an encoder\nof two lines", 3, search};
    const std::vector<int32_t> first_page{0};
    const auto vector = [](int64_t block) { return std::vector<float>{1.0F, static_cast<float>(block), 2.0F}; };
    int64_t blocks = 0;
    {
      const Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 36, 12);
      ASSERT_TRUE(filled.memory->index().SetPageVectors(options).ok());
      for (const Block& block : filled.blocks) {
        ASSERT_TRUE(filled.memory->index().AddPageVectors(block.id, first_page, vector(block.id)).ok());
      }
      ASSERT_TRUE(filled.memory->index().Save().ok());
      blocks = std::ssize(filled.blocks);
    }
    {
      const auto memory = Memory::Open(folder.path(), false).value();
      ASSERT_TRUE(memory->blocks().Forget(std::vector<int64_t>{7}).ok());
      ASSERT_TRUE(memory->upkeep().Compact().ok());
      EXPECT_TRUE(memory->index().TakeMessages().empty());
    }
    const auto memory = Memory::Open(folder.path(), false).value();
    ASSERT_TRUE(memory->index().SetPageVectors(options).ok());
    EXPECT_TRUE(memory->index().PagesWithoutVectors().empty());
    EXPECT_TRUE(memory->index().TakeMessages().empty());
    const std::filesystem::path file = folder.path() / "index" / "embedding";
    const auto size_in = [&file](const auto& load) { return load(file).value()->size(); };
    switch (search) {
      case index::VectorSearch::kFlat:
        EXPECT_EQ(size_in(index::LoadFlatIndex), blocks - 1);
        break;
      case index::VectorSearch::kHnsw:
        EXPECT_EQ(size_in(index::LoadHnswIndex), blocks - 1);
        break;
      case index::VectorSearch::kDnii:
        EXPECT_EQ(size_in(index::LoadNeuralInvertedIndex), blocks - 1);
        break;
    }
  }
}

// What a crash left of an index that was being saved holds what is forgotten later.
TEST(OsMemoryTest, ACompactionTakesWhatACrashLeftOfIndexes) {
  const TemporaryFolder folder;
  const Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 33, 6);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(filled.memory->index().Save().ok());
  const std::filesystem::path index = folder.path() / "index";
  for (const char* const name :
       {"heads.writing", "heads.12.3.writing", "heads.blocks.12.4.writing", "embedding.1.0.writing"}) {
    std::ofstream(index / name) << "forgotten";
  }
  ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(index)) names.push_back(entry.path().filename());
  EXPECT_TRUE(std::ranges::is_permutation(names, std::vector<std::string>{"heads", "lexical"}));

  // An index of before, and an older one that its list does not name: a crash came between the two.
  const std::string old = BytesOf(index / "heads");
  ASSERT_TRUE(filled.memory->blocks().Forget(std::vector<int64_t>{3}).ok());
  ASSERT_TRUE(filled.memory->index().Save().ok());
  ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
  const std::string without = BytesOf(index / "heads");
  ASSERT_LT(without.size(), old.size());
  PutBytes(index / "heads", old);
  ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
  EXPECT_EQ(BytesOf(index / "heads"), without);
  PutBytes(index / "heads", old);
  MakeOlderPair(index, "heads");
  const std::string alone = BytesOf(index / "heads");
  std::filesystem::remove(index / "heads.blocks");
  ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
  EXPECT_EQ(BytesOf(index / "heads"), without);
  MakeOlderPair(index, "heads");
  PutBytes(index / "heads", alone);
  ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
  EXPECT_EQ(BytesOf(index / "heads"), without);
  EXPECT_FALSE(std::filesystem::exists(index / "heads.blocks"));
}

// They are as large as the index, and nobody writes one of that name again.
TEST(OsMemoryTest, ASaveTakesWhatACrashLeftOfIndexes) {
  const TemporaryFolder folder;
  const Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 35, 6);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(filled.memory->index().Save().ok());
  const std::filesystem::path left = folder.path() / "index" / "heads.1.0.writing";
  std::ofstream(left) << "half of an index";
  ASSERT_TRUE(Memory::Open(folder.path(), true).value()->index().Save().ok());
  EXPECT_TRUE(std::filesystem::exists(left));  // a reader leaves the writer's alone
  Block more = filled.blocks[0];
  more.stream = 7;
  ASSERT_TRUE(Append(*filled.memory, more).ok());
  ASSERT_TRUE(filled.memory->index().Save().ok());
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST(OsMemoryTest, ARepairThatFailsBehindItsCommitIsToldToTheIndexes) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 34, 12);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  std::mt19937_64 random(35);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(Append(*filled.memory, RandomBlock(random, 9, 4 * i, 4, std::string(100'000, 's'))).ok());
  }
  ASSERT_TRUE(filled.memory->upkeep().Compact().ok());  // so that the catalog's log is empty
  DamageOnDisk(folder.path(), filled.blocks[6]);
  {
    const FileLimit limit(200'000);
    EXPECT_EQ(filled.memory->upkeep().Verify(true).status().code(), StatusCode::kIoError);
  }
  for (const PageRef& page : filled.memory->blocks().Pages()) EXPECT_NE(page.block, 7);
  std::vector<std::byte> out(filled.blocks[6].Payload().size());
  EXPECT_EQ(filled.memory->blocks().ReadPages(filled.blocks[6].Pages(), out).code(), StatusCode::kNotFound);
  EXPECT_TRUE(Append(*filled.memory, RandomBlock(random, 9, 32, 4)).ok());
  EXPECT_TRUE(filled.memory->upkeep().Verify(true)->damage.empty());
}

TEST(OsMemoryTest, ARepairIndexesWhatIsLeft) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 25, 12);
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(filled.memory->index().SetPageVectors({"encoder", 3}).ok());
  const std::vector<int32_t> first_page{0};
  for (const Block& block : filled.blocks) {
    const std::vector<float> vector{1.0F, static_cast<float>(block.id), 2.0F};
    ASSERT_TRUE(filled.memory->index().AddPageVectors(block.id, first_page, vector).ok());
  }
  DamageOnDisk(folder.path(), filled.blocks[6]);
  const auto report = filled.memory->upkeep().Verify(true);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->dropped, std::vector<int64_t>{7});
  EXPECT_TRUE(filled.memory->index().PagesWithoutVectors().empty());
  EXPECT_EQ(filled.memory->blocks().Infos()->size(), 11U);
  EXPECT_EQ(filled.memory->index().retrieval_heads(), kHeads);
  std::vector<std::byte> out(filled.blocks[6].Payload().size());
  EXPECT_EQ(filled.memory->blocks().ReadPages(filled.blocks[6].Pages(), out).code(), StatusCode::kNotFound);
  const Question question = QuestionFor(filled.blocks[9], filled.blocks[9].span.size() - 1, 4.0F);
  EXPECT_FALSE(filled.memory->search().Find(question.Request())->groups.empty());
}

// A repair drops the indexes of blocks, which the next search builds again; one that is under way must not miss them.
TEST(OsMemoryTest, SearchesRunBesideRepairs) {
  const TemporaryFolder folder;
  const Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 28, 70);
  std::atomic<bool> stop = false;
  const auto search = [&] {
    const std::vector<float> mean_query(static_cast<size_t>(kKvHeads * kDim), 1.0F);
    SearchRequest request;
    request.inputs["mean_query"].numbers = mean_query;
    request.kinds = {IndexPart::kMeanPool, IndexPart::kHnsw};
    while (!stop) {
      const Status found = filled.memory->search().Find(request).status();
      // What is damaged may be met before it is dropped.
      EXPECT_TRUE(found.ok() || found.code() == StatusCode::kCorrupt) << found.ToString();
    }
  };
  std::thread first(search);
  std::thread second(search);
  for (size_t i = 0; i < 60; ++i) {
    DamageOnDisk(folder.path(), filled.blocks[i]);
    const auto report = filled.memory->upkeep().Verify(true);
    EXPECT_TRUE(report.ok() && report->dropped == std::vector<int64_t>{filled.blocks[i].id}) << i;
  }
  stop = true;
  first.join();
  second.join();
}

// Room that was made for an index which cannot be built goes back to the payload.
TEST(OsMemoryTest, AnIndexThatFailsTakesNoRoom) {
  const TemporaryFolder folder;
  const Filled filled = Fill(Memory::Create(folder.path(), TestManifest(), {.host_bytes = 0}).value(), 29, 12);
  DamageOnDisk(folder.path(), filled.blocks[6]);
  const int64_t before = filled.memory->upkeep().Stats()->index_bytes;
  EXPECT_EQ(filled.memory->index().SetRetrievalHeads(kHeads).code(), StatusCode::kCorrupt);
  EXPECT_EQ(filled.memory->upkeep().Stats()->index_bytes, before);
}

// A block that the disk did not take is out of the indexes again, and the stream goes on where it was.
TEST(OsMemoryTest, ABlockThatCouldNotBeStoredIsTakenBack) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    Filled filled = Fill(Memory::Create(folder.path(), TestManifest()).value(), 26, 6);
    const std::vector<PageRef> before = filled.memory->blocks().Pages();
    std::vector<int32_t> all_ids(50);
    std::iota(all_ids.begin(), all_ids.end(), 0);
    const std::vector<float> idf = filled.memory->search().Idf(all_ids);
    rlimit limit = {};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlimit full = {.rlim_cur = std::filesystem::file_size(folder.path() / "segments" / "000001.kvseg") + 100,
                         .rlim_max = limit.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &full);
    std::mt19937_64 random(27);
    const Block block = RandomBlock(random, 7, 0, 9);
    EXPECT_TRUE(Append(*filled.memory, block).ok());
    EXPECT_EQ(filled.memory->upkeep().Flush().code(), StatusCode::kIoError);
    EXPECT_EQ(filled.memory->blocks().Pages(), before);
    EXPECT_EQ(filled.memory->search().Idf(all_ids), idf);
    EXPECT_EQ(filled.memory->blocks().StreamEnd(7), 0);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_TRUE(Append(*filled.memory, block).ok());
    EXPECT_TRUE(filled.memory->upkeep().Flush().ok());
    EXPECT_EQ(filled.memory->blocks().StreamEnd(7), 9);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// The way a real payload takes: rotated keys of a frame, archived in each codec, found by their un-rotated queries.
TEST(OsMemoryTest, SearchesAndReadsRunBesideAppends) {
  auto memory = Memory::Create(std::nullopt, TestManifest()).value();
  ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
  std::mt19937_64 random(19);
  const Block first = RandomBlock(random, 0, 0, 12);
  ASSERT_TRUE(Append(*memory, first).ok());
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  const Question question = QuestionFor(first, 11, 4.0F);
  const std::vector<float> mean_query(static_cast<size_t>(kKvHeads * kDim), 1.0F);
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        SearchRequest request = question.Request();
        request.inputs["mean_query"].numbers = mean_query;
        request.kinds |= {IndexPart::kMeanPool};
        const auto result = memory->search().Find(request);
        const auto ids = memory->blocks().TokenIds(0, {0, 12});
        const auto end = memory->blocks().StreamEnd(0);
        const auto pages = memory->blocks().PagesOf(0, {0, end});
        if (!result.ok() || result->groups.empty() || !ids.ok() || *ids != first.ids || !pages.ok()) ++wrong;
      }
    });
  }
  for (int i = 1; i < 60; ++i) {
    ASSERT_TRUE(Append(*memory, RandomBlock(random, 0, 12 * i, 12)).ok());
    if (i % 20 == 0) {
      ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(memory->blocks().Pages().size(), 180U);
}

}  // namespace
}  // namespace everlong::os
