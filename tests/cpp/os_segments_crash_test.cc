// A writer that dies at any call while it writes, merges or rewrites segments of its index: whoever opens the memory
// finds what was acknowledged, and nothing that was forgotten.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "os_killed_at_call.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

constexpr int kSavedAtFirst = 20;

// Blocks that a memory has and gets, each of a few tokens.
std::vector<Block> Blocks() {
  std::mt19937_64 random(91);
  std::vector<Block> blocks;
  for (int64_t at = 0; at < 34; ++at) {
    blocks.push_back(RandomBlock(random, 0, 6 * at, 6, "book"));
    blocks.back().id = at + 1;
  }
  return blocks;
}

std::unique_ptr<Memory> Opened(const std::filesystem::path& folder) {
  auto memory = Memory::Open(folder, false).value();
  EXPECT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
  return memory;
}

// Tells which block was added (its id) or forgotten (its id and 100), once that is done.
void Work(const std::filesystem::path& folder, const std::vector<Block>& blocks, bool with_heads, const Tell& tell) {
  const auto memory = with_heads ? Opened(folder) : Memory::Open(folder, false).value();
  const auto forget = [&](int64_t id) {
    if (memory->blocks().Forget(std::vector<int64_t>{id}).ok()) tell(id + 100);
  };
  auto next = blocks.begin() + kSavedAtFirst + 3;
  const auto add = [&](int count) {
    for (; count > 0; --count, ++next) {
      if (Append(*memory, *next).ok() && memory->upkeep().Flush().ok()) tell(next->id);
    }
  };
  add(1);
  static_cast<void>(memory->index().Save());
  add(2);
  static_cast<void>(memory->index().Save());  // with segments of before
  forget(22);
  static_cast<void>(memory->index().Save());  // without it
  add(8);
  static_cast<void>(memory->index().Save());  // all of them as one
  forget(3);
  forget(24);
  static_cast<void>(memory->upkeep().Compact());
  static_cast<void>(memory->index().Save());
  ::_exit(0);
}

void ExpectTheSameAsRebuilt(const std::filesystem::path& folder, const std::vector<Block>& live) {
  const auto answers = [&] {
    const auto memory = Opened(folder);
    std::vector<SearchResult> found;
    for (const Block& block : live) {
      found.push_back(memory->search().Find(QuestionFor(block, block.span.size() - 1, 3).Request()).value());
    }
    EXPECT_EQ(memory->index().TakeMessages(), std::vector<std::string>());
    return found;
  };
  const std::vector<SearchResult> found = answers();
  std::filesystem::remove_all(folder / "index");
  const std::vector<SearchResult> rebuilt = answers();
  for (size_t at = 0; at < live.size(); ++at) ExpectSame(found[at], rebuilt[at]);
}

TEST(OsSegmentsCrash, WhateverIsLeftOfSegmentsAnswersAsARebuiltIndex) {
  const std::vector<Block> blocks = Blocks();
  const TemporaryFolder root(FolderInRam());
  const std::filesystem::path folder = root.path() / "memory";
  const std::filesystem::path before = root.path() / "before";
  {
    const auto memory = Memory::Create(before, TestManifest()).value();
    ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    for (int at = 0; at < kSavedAtFirst + 3; ++at) {
      ASSERT_TRUE(Append(*memory, blocks[static_cast<size_t>(at)]).ok());
      if (at + 1 == kSavedAtFirst) {
        ASSERT_TRUE(memory->index().Save().ok());
      }
    }
    ASSERT_TRUE(memory->index().Save().ok());
  }
  long points = 0;
  for (const bool with_heads : {true, false}) {
    bool died = true;
    for (long at = 0; died && !testing::Test::HasFailure(); at += with_heads ? 1 : 4, ++points) {
      SCOPED_TRACE("dies before call " + std::to_string(at));
      std::filesystem::remove_all(folder);
      std::filesystem::copy(before, folder, std::filesystem::copy_options::recursive);
      const auto [told, has_died] = RunInChild([&](const Tell& tell) {
        KillAfterCalls(at);
        Work(folder, blocks, with_heads, tell);
      });
      died = has_died;
      ASSERT_FALSE(HasFailure());

      std::vector<Block> live;
      {
        const auto memory = Memory::Open(folder, true).value();
        const auto infos = memory->blocks().Infos().value();
        for (const store::BlockInfo& info : infos) {
          live.push_back(blocks[static_cast<size_t>(info.id - 1)]);
          EXPECT_FALSE(told.contains(info.id + 100)) << "block " << info.id << " comes back";
        }
      }
      for (const int64_t of : told) {
        if (of > 100 || told.contains(of + 100)) continue;
        const bool is_live = std::ranges::find(live, of, &Block::id) != live.end();
        EXPECT_TRUE(is_live || of == 24 || of == 22) << "block " << of << " is lost";
      }
      ExpectTheSameAsRebuilt(folder, live);
    }
  }
  EXPECT_GT(points, 100);
  RecordProperty("points", std::to_string(points));
}

}  // namespace
}  // namespace everlong::os
