// Saved indexes of a memory that are not what they should be are made anew, with a message.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/crc32c.h"
#include "os_memory_blocks.h"

namespace {

// Takes the place of index/heads when that is opened for the `g_at_opening`-th time.
const char* g_other_heads = nullptr;
int g_at_opening = 0;

}  // namespace

// This takes the place of the C library's in this program.
extern "C" int open(const char* path, int flags, ...) {
  if (g_other_heads != nullptr && std::string_view(path).ends_with("/index/heads") && --g_at_opening == 0) {
    std::filesystem::rename(g_other_heads, path);
    g_other_heads = nullptr;
  }
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  using Open = int(const char*, int, ...);
  static auto* const next = reinterpret_cast<Open*>(::dlsym(RTLD_NEXT, "open"));
  return next(path, flags, mode);
}

namespace everlong::os {
namespace {

constexpr uint64_t kSeed = 51;
constexpr size_t kMagic = 24;
constexpr size_t kHeader = 16;
constexpr size_t kCovered = 48;

// A memory whose heads are saved; its blocks.
std::vector<Block> MakeSaved(const std::filesystem::path& folder, float keys_times) {
  Filled filled = FilledInRam(kSeed);
  const auto memory = Memory::Create(folder, TestManifest()).value();
  for (Block& block : filled.blocks) {
    for (float& key : block.keys) key *= keys_times;
    EXPECT_TRUE(Append(*memory, block).ok());
  }
  EXPECT_TRUE(memory->SetRetrievalHeads(kHeads).ok());
  EXPECT_TRUE(memory->SaveIndexes().ok());
  return filled.blocks;
}

std::string Read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Another number at byte `at` of a file, and the checksum that this has.
void Put(const std::filesystem::path& file, size_t at, int64_t number) {
  std::string bytes = Read(file);
  std::memcpy(bytes.data() + at, &number, sizeof number);
  const size_t body = bytes.size() - sizeof(uint32_t);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)).first(body));
  std::memcpy(bytes.data() + body, &crc, sizeof crc);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(OsSavedIndexesTest, AListWithNumbersThatCannotBeIsNotUsed) {
  const TemporaryFolder folder;
  const std::vector<Block> blocks = MakeSaved(folder.path(), 1);
  const std::filesystem::path list = folder.path() / "index" / "heads.blocks";
  const std::string good = Read(list);
  const size_t last = good.size() - sizeof(uint32_t) - kCovered;
  const auto count = static_cast<int64_t>(blocks.size());
  {
    const auto memory = Memory::Open(folder.path(), false).value();
    ASSERT_TRUE(memory->Forget(std::vector<int64_t>{count}).ok());
  }
  const auto use = [&] {
    const auto memory = Memory::Open(folder.path(), true).value();
    EXPECT_TRUE(memory->SetRetrievalHeads(kHeads).ok());
    EXPECT_TRUE(memory->Search(QuestionFor(blocks[0], 0, 1).Request()).ok());
    return memory->TakeMessages().size();
  };
  EXPECT_EQ(use(), 0U);
  struct Change {
    size_t at;
    int64_t number;
  };
  for (const Change& change : {Change{kMagic + 8, count + (int64_t{1} << 60)},  // so many bytes in 64 bits
                               Change{kMagic + 8, -1}, Change{last + 16, INT64_MIN}, Change{last + 16, INT64_MAX},
                               Change{last + 24, INT64_MAX}, Change{last + 24, int64_t{1} << 40}}) {
    std::ofstream(list, std::ios::binary | std::ios::trunc) << good;
    Put(list, change.at, change.number);
    EXPECT_EQ(use(), 1U) << change.at << " " << change.number;
  }
}

// The writer beside a reader saves its indexes anew between two looks of the reader.
TEST(OsSavedIndexesTest, AnIndexThatIsReplacedWhileItIsReadIsNotUsed) {
  const TemporaryFolder folder;
  const TemporaryFolder other;
  const std::vector<Block> blocks = MakeSaved(folder.path(), 1);
  MakeSaved(other.path(), -1);
  const Question question = QuestionFor(blocks[3], 0, 2);
  const auto search = [&](const Memory& memory) {
    SearchRequest request = question.Request();
    request.kinds = {IndexPart::kHeads};
    return memory.Search(request).value();
  };
  const auto memory = Memory::Open(folder.path(), true).value();
  ASSERT_TRUE(memory->SetRetrievalHeads(kHeads).ok());
  ASSERT_TRUE(memory->TakeMessages().empty());
  const SearchResult expected = search(*memory);
  const std::string heads = Read(folder.path() / "index" / "heads");
  for (const int opening : {1, 2, 3}) {
    std::ofstream(folder.path() / "index" / "heads", std::ios::binary | std::ios::trunc) << heads;
    const std::string newer = (folder.path() / "newer").string();
    std::filesystem::copy_file(other.path() / "index" / "heads", newer);
    g_at_opening = opening;
    g_other_heads = newer.c_str();
    const auto reader = Memory::Open(folder.path(), true).value();
    ASSERT_TRUE(reader->SetRetrievalHeads(kHeads).ok());
    ASSERT_EQ(g_other_heads, nullptr);
    EXPECT_EQ(reader->TakeMessages().size(), 1U) << opening;
    ExpectSame(search(*reader), expected);
  }
}

}  // namespace
}  // namespace everlong::os
