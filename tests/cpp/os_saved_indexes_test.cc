// Saved indexes of a memory that are not what they should be are made anew, with a message.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base_held_reader.h"
#include "base_opened_beneath.h"
#include "os_memory_blocks.h"
#include "os_older_index.h"

namespace {

// Takes the place of index/heads when that is opened for the `g_at_opening`-th time.
const char* g_other_heads = nullptr;
int g_at_opening = 0;

// A merge: when `of` is about to be opened, `becomes` takes its place under the name of both.
struct Merge {
  std::string of;
  std::filesystem::path from;
  std::filesystem::path becomes;
};
const Merge* g_merge = nullptr;

}  // namespace

static bool PutsAnother(const everlong::OpenedBeneath& opened) {
  everlong::HoldReaderOfSegment(opened);
  if (g_other_heads != nullptr && std::string_view(opened.name) == "index/heads" && --g_at_opening == 0) {
    std::filesystem::rename(g_other_heads, opened.path());
    g_other_heads = nullptr;
  }
  if (g_merge != nullptr && opened.name == g_merge->of) {
    const Merge& merge = *std::exchange(g_merge, nullptr);
    std::filesystem::rename(merge.from, merge.becomes);
    std::filesystem::remove(opened.path());
  }
  return false;
}
// This takes the place of the C library's in this program.
EVERLONG_SYSCALL_ASKING(PutsAnother)

namespace everlong::os {
namespace {

constexpr uint64_t kSeed = 51;
constexpr size_t kMagic = 24;
constexpr size_t kCovered = 56;

// A memory whose heads are saved; its blocks.
std::vector<Block> MakeSaved(const std::filesystem::path& folder, float keys_times) {
  Filled filled = FilledInRam(kSeed);
  const auto memory = Memory::Create(folder, TestManifest()).value();
  for (Block& block : filled.blocks) {
    for (float& key : block.keys) key *= keys_times;
    EXPECT_TRUE(Append(*memory, block).ok());
  }
  EXPECT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
  EXPECT_TRUE(memory->index().Save().ok());
  return filled.blocks;
}

TEST(OsSavedIndexesTest, AListWithNumbersThatCannotBeIsNotUsed) {
  const TemporaryFolder folder;
  const std::vector<Block> blocks = MakeSaved(folder.path(), 1);
  const std::filesystem::path heads = folder.path() / "index" / "heads";
  const std::string good = BytesOf(heads);
  const size_t list = ListBegin(good);
  const size_t last = good.size() - kTail - kCovered;
  const auto count = static_cast<int64_t>(blocks.size());
  {
    const auto memory = Memory::Open(folder.path(), false).value();
    ASSERT_TRUE(memory->blocks().Forget(std::vector<int64_t>{count}).ok());
  }
  const auto use = [&] {
    const auto memory = Memory::Open(folder.path(), true).value();
    EXPECT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    EXPECT_TRUE(memory->search().Find(QuestionFor(blocks[0], 0, 1).Request()).ok());
    return memory->index().TakeMessages().size();
  };
  EXPECT_EQ(use(), 0U);
  struct Change {
    size_t at;
    int64_t number;
  };
  for (const Change& change :
       {Change{list + kMagic + 8, count + (int64_t{1} << 60)},  // so many bytes in 64 bits
        Change{list + kMagic + 8, -1}, Change{last + 16, INT64_MIN}, Change{last + 16, INT64_MAX},
        Change{last + 24, INT64_MAX}, Change{last + 24, int64_t{1} << 40}}) {
    std::string bytes = good;
    std::memcpy(bytes.data() + change.at, &change.number, sizeof change.number);
    PutBytes(heads, WithChecksum(bytes, list - sizeof(uint32_t)));
    EXPECT_EQ(use(), 1U) << change.at << " " << change.number;
  }
}

// The writer beside a reader saves its indexes anew between two looks of the reader, who looks again.
TEST(OsSavedIndexesTest, AnIndexThatIsReplacedWhileItIsReadIsReadAnew) {
  const TemporaryFolder folder;
  const TemporaryFolder other;
  const std::vector<Block> blocks = MakeSaved(folder.path(), 1);
  MakeSaved(other.path(), -1);
  const Question question = QuestionFor(blocks[3], 0, 2);
  const auto search = [&](const Memory& memory) {
    SearchRequest request = question.Request();
    request.kinds = {IndexPart::kHeads};
    return memory.search().Find(request).value();
  };
  const auto memory = Memory::Open(other.path(), true).value();
  ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(memory->index().TakeMessages().empty());
  const SearchResult expected = search(*memory);
  const std::string heads = BytesOf(folder.path() / "index" / "heads");
  for (const int opening : {1, 2, 3}) {
    std::ofstream(folder.path() / "index" / "heads", std::ios::binary | std::ios::trunc) << heads;
    const std::string newer = (folder.path() / "newer").string();
    std::filesystem::copy_file(other.path() / "index" / "heads", newer);
    g_at_opening = opening;
    g_other_heads = newer.c_str();
    const auto reader = Memory::Open(folder.path(), true).value();
    ASSERT_TRUE(reader->index().SetRetrievalHeads(kHeads).ok());
    ASSERT_EQ(g_other_heads, nullptr);
    EXPECT_EQ(reader->index().TakeMessages(), std::vector<std::string>()) << opening;
    ExpectSame(search(*reader), expected);
  }
}

// The writer merges a file behind the first after a reader has listed them.
TEST(OsSavedIndexesTest, AFileThatIsMergedWhileTheyAreReadIsReadInItsNewPlace) {
  const TemporaryFolder folder;
  const std::filesystem::path index = folder.path() / "index";
  std::vector<Block> blocks;
  {
    std::mt19937_64 random(kSeed);
    const auto memory = Memory::Create(folder.path(), TestManifest()).value();
    ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    int64_t end = 0;
    for (const int count : {30, 4, 3}) {
      for (int i = 0; i < count; ++i, end += 9) {
        blocks.push_back(RandomBlock(random, 0, end, 9, "book"));
        blocks.back().id = Append(*memory, blocks.back()).value();
      }
      ASSERT_TRUE(memory->index().Save().ok());
      if (count == 4) std::filesystem::copy_file(index / "heads.31-34", folder.path() / "before");
    }
  }
  std::filesystem::rename(index / "heads.31-37", folder.path() / "merged");
  std::filesystem::rename(folder.path() / "before", index / "heads.31-34");
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "segments")) {
    PutBytes(entry.path(), std::string(std::filesystem::file_size(entry.path()), 'x'));  // no payload is read
  }
  const Merge merge{"index/heads.31-34", folder.path() / "merged", index / "heads.31-37"};
  g_merge = &merge;
  const auto reader = Memory::Open(folder.path(), true).value();
  ASSERT_TRUE(reader->index().SetRetrievalHeads(kHeads).ok());
  EXPECT_EQ(g_merge, nullptr);
  EXPECT_EQ(reader->index().TakeMessages(), std::vector<std::string>());
  const Question question = QuestionFor(blocks.back(), 8, 3);
  SearchRequest request = question.Request();
  request.kinds = {IndexPart::kHeads};
  EXPECT_FALSE(reader->search().Find(request)->groups.empty());
}

// As releases wrote it that had the list in a file of its own. It does not say which token ids its blocks had, so that
// another memory's would be taken for it.
TEST(OsSavedIndexesTest, AnOlderPairOfFilesIsRebuiltAndSavedAsOne) {
  const TemporaryFolder folder;
  const std::vector<Block> blocks = MakeSaved(folder.path(), 1);
  const std::filesystem::path index = folder.path() / "index";
  const std::string whole = BytesOf(index / "heads");
  MakeOlderPair(index, "heads");
  const auto opened = [&] {
    auto memory = Memory::Open(folder.path(), false).value();
    EXPECT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    return memory;
  };
  {
    const auto memory = opened();
    EXPECT_EQ(memory->index().TakeMessages().size(), 1U);
    ASSERT_TRUE(memory->index().Save().ok());
    EXPECT_EQ(BytesOf(index / "heads"), whole);
    Block more = blocks[0];
    more.stream = 9;
    ASSERT_TRUE(Append(*memory, more).ok());
    ASSERT_TRUE(memory->index().Save().ok());
  }
  EXPECT_FALSE(std::filesystem::exists(index / "heads.blocks"));
  EXPECT_TRUE(opened()->index().TakeMessages().empty());

  // A crash came between the two of a pair.
  PutBytes(index / "heads", whole);
  MakeOlderPair(index, "heads");
  PutBytes(index / "heads", BytesOf(index / "heads") + "more");
  EXPECT_EQ(opened()->index().TakeMessages().size(), 1U);
}

}  // namespace
}  // namespace everlong::os
