// What must not grow with the number of blocks, or of memories.
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "../../cpp/store/catalog.h"
#include "../../cpp/store/read_threads.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

TEST(StoreManyBlocks, TheRowsThatACatalogKeepsInRamHaveABound) {
  constexpr int64_t kBlocks = 3000;
  constexpr int32_t kPages = 8;
  const auto catalog = Catalog::Over(CatalogFile::CreateInRam()).value();
  const std::vector<int32_t> ids(8, 1);
  BlockDraft draft;
  draft.span = {0, 8};
  draft.token_ids = ids;
  const std::vector<std::byte> payload(size_t{kPages} * 100 * 64);
  draft.payload = payload;
  const auto row_of = [](int64_t block, int32_t page) {
    return PageRow{1, 4096 * (kPages * block + page), 64, std::vector<uint32_t>(100, static_cast<uint32_t>(block))};
  };
  std::vector<NewBlock> blocks;
  for (int64_t id = 1; id <= kBlocks; ++id) {
    NewBlock block{id, &draft};
    for (int32_t page = 0; page < kPages; ++page) block.rows.push_back(row_of(id, page));
    blocks.push_back(std::move(block));
  }
  ASSERT_OK(catalog->Insert(blocks));
  int64_t most = 0;
  for (const int64_t stride : {1, 7}) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      const PageKey key{1 + i * stride % kBlocks, static_cast<int32_t>(i % kPages)};
      const auto rows = catalog->Locate({&key, 1});
      ASSERT_OK(rows.status());
      ASSERT_EQ(*rows->at(0), row_of(key.block, key.page));
      most = std::max(most, catalog->known().bytes());
    }
  }
  EXPECT_LE(most, kMostKnownBytes);
  EXPECT_GT(most, kMostKnownBytes / 2);
  std::vector<int64_t> all(kBlocks);
  for (int64_t id = 1; id <= kBlocks; ++id) all[static_cast<size_t>(id - 1)] = id;
  EXPECT_EQ(catalog->TakeOut(all)->size(), static_cast<size_t>(kBlocks * kPages));
  EXPECT_EQ(catalog->known().bytes(), 0);
  EXPECT_TRUE(catalog->Blocks({})->empty());
}

class StoreManyMemories : public StoreFolderTest {};

TEST_F(StoreManyMemories, TheirReadThreadsAreThoseOfTheProcess) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  std::thread([] {}).join();  // a sanitizer's own thread begins with the first one
  const auto before = threads();
  std::vector<std::unique_ptr<MemoryStore>> readers;
  for (int i = 0; i < 4; ++i) {
    const std::filesystem::path folder = root_ / std::to_string(i);
    const TestBlock block(static_cast<uint64_t>(i), 60);
    {
      const auto store = MemoryStore::Create(folder, TestManifest()).value();
      ASSERT_OK(AppendTo(*store, block.Draft()).status());
    }
    readers.push_back(MemoryStore::Open(folder, true, {.host_bytes = 0}).value());
    std::vector<std::byte> bytes;
    ASSERT_OK(ReadBlock(*readers.back(), block, 1, bytes));
    EXPECT_TRUE(bytes == block.payload);
  }
  EXPECT_LE(threads() - before, kReadThreads);
}

}  // namespace
}  // namespace everlong::store
