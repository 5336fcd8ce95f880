// Blocks that are large enough for several threads; those of the other suites are not.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "../../cpp/store/read_threads.h"
#include "../../cpp/store/record.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

constexpr int64_t kPartBytes = 333'337;  // no slice of it is whole, and no part begins at a round address
constexpr int64_t kLastPartBytes = 91'001;

// Pages of kLayers parts, the last one shorter. Equal arguments give equal bytes.
TestBlock LargeBlock(uint64_t seed, int32_t pages, int64_t begin = 0) {
  TestBlock block(seed, (pages - 1) * kPageTokens + 3, begin);
  block.page_bytes.assign(static_cast<size_t>(pages), kLayers * kPartBytes);
  block.page_bytes.back() = kLayers * kLastPartBytes;
  std::mt19937_64 random(seed);
  block.payload.resize(static_cast<size_t>(((pages - 1) * kPartBytes + kLastPartBytes) * kLayers));
  uint64_t word = 0;
  for (size_t at = 0; at < block.payload.size(); at += sizeof word) {
    word = random();
    std::memcpy(block.payload.data() + at, &word, std::min(sizeof word, block.payload.size() - at));
  }
  return block;
}

int64_t BytesInSegment(const TestBlock& block) {
  int64_t bytes = 0;
  for (const int64_t page : block.page_bytes) bytes += RecordBytes(kLayers, page / kLayers);
  return bytes;
}

class StoreLarge : public StoreFolderTest {};

TEST_F(StoreLarge, ThreadsShareTheWorkAndEachPieceIsDoneOnce) {
  ReadThreads threads;
  for (const size_t helpers : {0, 1, 3, 40}) {
    std::vector<std::atomic<int>> done(1000);
    RunTogether(threads, helpers, done.size(), [&done](size_t i) { ++done[i]; });
    for (const std::atomic<int>& times : done) ASSERT_EQ(times, 1);
  }
  RunTogether(threads, 3, 0, [](size_t) { FAIL(); });
}

TEST_F(StoreLarge, FewBytesWakeNobody) {
  EXPECT_EQ(RamHelpers(0), 0U);
  EXPECT_EQ(RamHelpers(int64_t{1} << 20), 0U);
  EXPECT_LT(RamHelpers(int64_t{1} << 40), std::max(1U, std::thread::hardware_concurrency()));
}

TEST_F(StoreLarge, IsStoredAsItIsInRamAndInAFolder) {
  for (const bool in_ram : {true, false}) {
    const auto place = in_ram ? std::nullopt : std::optional(folder_);
    const auto store =
        MemoryStore::Create(place, TestManifest(), {.host_bytes = in_ram ? int64_t{1} << 30 : 0}).value();
    std::vector<TestBlock> blocks;
    for (const int32_t pages : {1, 2, 3, 9}) {
      blocks.push_back(LargeBlock(static_cast<uint64_t>(pages), pages));
      ASSERT_OK(AppendAll(*store, blocks.back()).status());
    }
    for (size_t i = 0; i < blocks.size(); ++i) ExpectStored(*store, blocks[i], static_cast<int64_t>(i + 1));
    ExpectUndamaged(*store);
    // Runs of parts that no piece of the work ends at.
    std::vector<std::byte> bytes;
    for (const int32_t first : {0, 1, 3}) {
      for (int32_t parts = 1; first + parts <= kLayers; ++parts) {
        ASSERT_OK(ReadParts(*store, blocks[3], 4, 7, first, parts, bytes));
        EXPECT_TRUE(bytes == blocks[3].Parts(7, first, parts));
      }
    }
  }
}

// What lies in a segment does not depend on how many threads put it there.
TEST_F(StoreLarge, RecordsHaveTheChecksumsOfTheirParts) {
  const TestBlock block = LargeBlock(5, 4);
  ASSERT_OK(AppendTo(*Create(), block.Draft()).status());
  const std::string segment = ReadFile(folder_ / "segments" / "000001.kvseg");
  ASSERT_EQ(std::ssize(segment), BytesInSegment(block));
  size_t at = 0;
  for (int32_t page = 0; page < block.pages(); ++page) {
    const auto record = std::as_bytes(std::span(segment)).subspan(at);
    const Result<RecordHeader> header = DecodeRecordHeader(record);
    ASSERT_OK(header.status());
    const std::vector<std::byte> parts = block.Parts(page, 0, kLayers);
    EXPECT_EQ(header->part_crcs, PartChecksums(parts, kLayers));
    EXPECT_TRUE(
        std::ranges::equal(parts, record.subspan(static_cast<size_t>(RecordHeaderBytes(kLayers)), parts.size())));
    at += static_cast<size_t>(RecordBytes(kLayers, header->part_bytes));
  }
}

TEST_F(StoreLarge, DamageIsFoundWhereverItLies) {
  const TestBlock block = LargeBlock(6, 3);
  ASSERT_OK(AppendTo(*Create(), block.Draft()).status());
  const std::filesystem::path segment = folder_ / "segments" / "000001.kvseg";
  const auto store = Open(true, {.host_bytes = 0});
  int64_t record = 0;
  for (int32_t page = 0; page < block.pages(); ++page) {
    const int64_t part_bytes = block.page_bytes[static_cast<size_t>(page)] / kLayers;
    for (const int32_t part : {0, 2, kLayers - 1}) {
      for (const int64_t at : {int64_t{0}, int64_t{32'768}, part_bytes / 2, part_bytes - 1}) {
        const auto bit = static_cast<size_t>(8 * (record + RecordHeaderBytes(kLayers) + part * part_bytes + at) + 3);
        FlipBit(segment, bit);
        std::vector<std::byte> bytes;
        const Status status = ReadBlock(*store, block, 1, bytes);
        EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.ToString();
        const std::string what = "page " + std::to_string(page) + " part " + std::to_string(part) + ":";
        EXPECT_NE(status.message().find(what), std::string::npos) << status.ToString();
        FlipBit(segment, bit);
      }
    }
    record += RecordBytes(kLayers, part_bytes);
  }
  std::vector<std::byte> bytes;
  ASSERT_OK(ReadBlock(*store, block, 1, bytes));
  EXPECT_TRUE(bytes == block.payload);
}

TEST_F(StoreLarge, ASpentBudgetLeavesAMemoryInRamAsItWas) {
  const TestBlock block = LargeBlock(7, 6);
  const int64_t bytes = BytesInSegment(block);
  const auto store = MemoryStore::Create(std::nullopt, TestManifest(), {.host_bytes = 5 * bytes / 2}).value();
  const auto submit = [&](uint64_t seed) { return store->Submit(LargeBlock(seed, 6).Draft()); };
  EXPECT_EQ(submit(1).value(), 1);
  EXPECT_EQ(submit(2).value(), 2);
  EXPECT_EQ(PayloadInRam(*store), 2 * bytes);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(submit(3).status().code(), StatusCode::kCapacity);
  EXPECT_EQ(PayloadInRam(*store), 2 * bytes);
  EXPECT_EQ(store->Stats().value().blocks, 2);
  for (const int64_t id : {1, 2}) ExpectStored(*store, LargeBlock(static_cast<uint64_t>(id), 6), id);
  ASSERT_OK(store->Forget(std::vector<int64_t>{1}));
  EXPECT_EQ(PayloadInRam(*store), bytes);
  EXPECT_EQ(submit(3).value(), 3);
  EXPECT_EQ(PayloadInRam(*store), 2 * bytes);
  for (const int64_t id : {2, 3}) ExpectStored(*store, LargeBlock(static_cast<uint64_t>(id), 6), id);
  ExpectUndamaged(*store);
}

TEST_F(StoreLarge, ReadsThatNobodyWaitsForEndWithTheirHandle) {
  const auto store = MemoryStore::Create(std::nullopt, TestManifest(), {.host_bytes = int64_t{1} << 30}).value();
  const TestBlock block = LargeBlock(8, 5);
  ASSERT_OK(AppendTo(*store, block.Draft()).status());
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> bytes(static_cast<size_t>(block.page_bytes[0]));
    const PageRead read{1, i % 4, 0, kLayers, bytes};
    const auto reads = store->StartReadPages({&read, 1});
    if (i % 2 == 0) continue;
    ASSERT_OK(reads->Wait());
    ASSERT_OK(reads->Wait());
    EXPECT_TRUE(bytes == block.Parts(i % 4, 0, kLayers));
  }
}

TEST_F(StoreLarge, ReadersBesideAWriterSeeTheBytesOfABlockOrThatItIsGone) {
  constexpr int64_t kBlocks = 16;
  constexpr int64_t kKept = 3;  // the latest of them
  for (const bool in_ram : {true, false}) {
    const auto place = in_ram ? std::nullopt : std::optional(folder_);
    const auto store = MemoryStore::Create(place, TestManifest(), {.host_bytes = int64_t{64} << 20}).value();
    std::vector<TestBlock> blocks;
    for (int64_t id = 1; id <= kBlocks; ++id) blocks.push_back(LargeBlock(static_cast<uint64_t>(id), 4));
    std::atomic<int64_t> newest = 0;
    std::thread writer([&] {
      for (int64_t id = 1; id <= kBlocks; ++id) {
        EXPECT_EQ(AppendTo(*store, blocks[static_cast<size_t>(id - 1)].Draft()).value(), id);
        newest = id;
        if (id > kKept) {
          EXPECT_OK(store->Forget(std::vector<int64_t>{id - kKept}));
        }
      }
    });
    const auto read = [&](uint64_t seed) {
      auto random = Repeatable(seed);
      std::vector<std::byte> bytes;
      while (newest < kBlocks) {
        const int64_t id = newest - static_cast<int64_t>(random() % (kKept + 1));
        if (id < 1) continue;
        const TestBlock& block = blocks[static_cast<size_t>(id - 1)];
        const Status status = ReadBlock(*store, block, id, bytes);
        if (status.ok()) {
          EXPECT_TRUE(bytes == block.payload) << "block " << id;
        } else {
          EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
        }
      }
    };
    std::thread first(read, 1);
    std::thread second(read, 2);
    writer.join();
    first.join();
    second.join();
    ExpectUndamaged(*store);
    if (in_ram) {
      EXPECT_EQ(PayloadInRam(*store), kKept * BytesInSegment(blocks[0]));
    }
  }
}

}  // namespace
}  // namespace everlong::store
