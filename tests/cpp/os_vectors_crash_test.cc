// Vectors that a caller computed are nowhere else: a writer that dies at any of its writes loses none that was saved.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <vector>

#include "everlong/index/vector_index.h"
#include "os_killed_at_call.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

constexpr int64_t kBlocks = 6;
constexpr int64_t kForgotten = 2;
const PageVectorOptions kEncoder{"encoder", kBlocks};

std::vector<float> VectorOf(int64_t block) {
  std::vector<float> vector(kBlocks, 0.0F);
  vector[static_cast<size_t>(block - 1)] = 1;
  return vector;
}

void AddVectors(Memory& memory, int64_t first, int64_t last) {
  const std::vector<int32_t> first_page{0};
  for (int64_t block = first; block <= last; ++block) {
    ASSERT_TRUE(memory.index().AddPageVectors(block, first_page, VectorOf(block)).ok());
  }
}

// Tells which step it has behind it.
void Work(const std::filesystem::path& folder, bool has_encoder, const Tell& tell) {
  const auto memory = Memory::Open(folder, false).value();
  if (has_encoder) {
    if (!memory->index().SetPageVectors(kEncoder).ok()) ::_exit(6);
    AddVectors(*memory, 4, kBlocks);
    if (memory->index().Save().ok()) tell('s');
  }
  if (memory->blocks().Forget(std::vector<int64_t>{kForgotten}).ok()) tell('f');
  if (memory->upkeep().Compact().ok()) tell('c');
  ::_exit(0);  // a process that ends without closing its memory
}

TEST(OsVectorsCrash, NoVectorThatWasSavedIsLostAndNoneIsWrong) {
  const TemporaryFolder root;
  const std::filesystem::path folder = root.path() / "memory";
  const std::filesystem::path before = root.path() / "before";
  {
    const Filled filled = Fill(Memory::Create(before, TestManifest()).value(), 71, kBlocks);
    ASSERT_TRUE(filled.memory->index().SetPageVectors(kEncoder).ok());
    AddVectors(*filled.memory, 1, 3);
    ASSERT_TRUE(filled.memory->index().Save().ok());
  }
  for (const bool has_encoder : {true, false}) {
    bool died = true;
    for (long at = 0; died && !testing::Test::HasFailure(); ++at) {
      SCOPED_TRACE("dies before call " + std::to_string(at));
      std::filesystem::remove_all(folder);
      std::filesystem::copy(before, folder, std::filesystem::copy_options::recursive);
      const auto [told, has_died] = RunInChild([&](const Tell& tell) {
        KillAfterCalls(at);
        Work(folder, has_encoder, tell);
      });
      died = has_died;
      ASSERT_FALSE(HasFailure());

      const auto memory = Memory::Open(folder, false).value();
      ASSERT_TRUE(memory->index().SetPageVectors(kEncoder).ok());
      EXPECT_EQ(memory->index().TakeMessages(), std::vector<std::string>());
      std::set<int64_t> without;
      for (const PageRef& page : memory->index().PagesWithoutVectors()) without.insert(page.block);
      const bool forgotten = memory->blocks().Infos({})->size() < static_cast<size_t>(kBlocks);
      EXPECT_TRUE(forgotten || !told.contains('f'));
      for (int64_t block = 1; block <= kBlocks; ++block) {
        if (block == kForgotten && forgotten) continue;
        const bool was_saved = block <= 3 || told.contains('s');
        EXPECT_FALSE(was_saved && without.contains(block)) << "the vectors of block " << block << " are lost";
        if (without.contains(block)) continue;
        const auto saved = index::LoadFlatIndex(folder / "index" / "embedding");
        ASSERT_TRUE(saved.ok()) << saved.status().ToString();
        const index::VectorHit best = (*saved)->Search(VectorOf(block), 1, {}).value()[0].at(0);
        EXPECT_EQ(best.id, (block << 24U) * kMaxPageVectors);  // its page 0, and that one's first vector
        EXPECT_EQ(best.score, 1);
      }
    }
  }
}

}  // namespace
}  // namespace everlong::os
