// The RAM tier, its budget and its eviction; reads under way; what is queued for the disk.
#include <thread>

#include "../../cpp/store/host_tier.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

constexpr int64_t kPartBytes = 100;
const PageRow kRow{1, 0, kPartBytes, {1, 2, 3}};

std::vector<std::byte> PartOf(int64_t block) {
  return std::vector<std::byte>(kPartBytes, static_cast<std::byte>(block));
}

TEST(StoreHostTier, KeepsItsBudgetAndGivesBackWhatItWasGiven) {
  HostTier tier(10 * kPartBytes);
  for (int64_t block = 1; block <= 100; ++block) {
    tier.Insert(block, 0, 0, kRow, PartOf(block), tier.erasures());
    EXPECT_LE(tier.bytes(), 10 * kPartBytes);
  }
  EXPECT_EQ(tier.bytes(), 10 * kPartBytes);
  for (int64_t block = 1; block <= 100; ++block) {
    const HostTier::Bytes found = tier.Find(block, 0, 0, 1, kRow)[0];
    if (found != nullptr) {
      EXPECT_TRUE(std::equal(found.get(), found.get() + kPartBytes, PartOf(block).begin()));
    }
  }
  tier.Insert(200, 0, 0, PageRow{1, 0, 11 * kPartBytes, {0}}, std::vector<std::byte>(11 * kPartBytes),
              tier.erasures());  // never fits
  EXPECT_EQ(tier.Find(200, 0, 0, 1, kRow)[0], nullptr);
  EXPECT_EQ(tier.bytes(), 10 * kPartBytes);
}

TEST(StoreHostTier, AScanDoesNotPushOutWhatIsInUse) {
  HostTier tier(100 * kPartBytes);
  const auto use = [&tier](int64_t block) {
    const bool there = tier.Find(block, 0, 0, 1, kRow)[0] != nullptr;
    if (!there) tier.Insert(block, 0, 0, kRow, PartOf(block), tier.erasures());
    return there;
  };
  for (int round = 0; round < 3; ++round) {
    for (int64_t block = 1; block <= 50; ++block) use(block);
  }
  for (int64_t block = 1'000; block < 11'000; ++block) use(block);  // a hundred times the budget, once
  int kept = 0;
  for (int64_t block = 1; block <= 50; ++block) kept += use(block) ? 1 : 0;
  EXPECT_GE(kept, 45);
}

TEST(StoreHostTier, ForgetsBlocks) {
  HostTier tier(100 * kPartBytes);
  std::vector<std::byte> page(3 * kPartBytes, std::byte{1});
  for (int64_t block = 1; block <= 3; ++block) tier.Insert(block, 0, 0, kRow, page, tier.erasures());
  tier.Erase(std::vector<int64_t>{1, 3});
  EXPECT_EQ(tier.bytes(), 3 * kPartBytes);
  EXPECT_EQ(tier.Find(1, 0, 0, 3, kRow)[0], nullptr);
  EXPECT_NE(tier.Find(2, 0, 0, 3, kRow)[2], nullptr);
  for (int64_t block = 10; block < 500; ++block) tier.Insert(block, 0, 0, kRow, PartOf(block), tier.erasures());
  EXPECT_LE(tier.bytes(), 100 * kPartBytes);
}

// A block that comes anew stands in the small queue, also where it had a place in the main one.
TEST(StoreHostTier, WhatWasErasedAndComesAnewBeginsAnew) {
  HostTier tier(10 * kPartBytes);
  const std::vector<std::byte> part(kPartBytes);
  const auto insert = [&](int64_t block) { tier.Insert(block, 0, 0, kRow, part, tier.erasures()); };
  const auto has = [&](int64_t block) { return tier.Find(block, 0, 0, 1, kRow)[0] != nullptr; };
  for (int64_t block = 1; block <= 10; ++block) insert(block);
  EXPECT_TRUE(has(1));
  insert(11);  // 1 goes over into the main queue, 2 goes
  EXPECT_FALSE(has(2));
  tier.Erase(std::vector<int64_t>{1});
  insert(1);
  for (int64_t block = 3; block <= 11; ++block) EXPECT_TRUE(has(block));
  insert(12);  // these go over, and the oldest of the main queue goes
  EXPECT_TRUE(has(1));
  EXPECT_FALSE(has(3));
  EXPECT_EQ(tier.bytes(), 10 * kPartBytes);
}

TEST(StoreHostTier, WhatWasErasedLeavesNoPlaceInTheQueue) {
  HostTier tier(10 * kPartBytes);
  for (int64_t block = 1; block <= 10; ++block) tier.Insert(block, 0, 0, kRow, PartOf(block), tier.erasures());
  tier.Erase(std::vector<int64_t>{1});
  tier.Insert(1, 0, 0, kRow, PartOf(1), tier.erasures());
  tier.Insert(11, 0, 0, kRow, PartOf(11), tier.erasures());  // the oldest goes: it is 2 now
  EXPECT_NE(tier.Find(1, 0, 0, 1, kRow)[0], nullptr);
  EXPECT_EQ(tier.Find(2, 0, 0, 1, kRow)[0], nullptr);
}

TEST(StoreHostTier, ASmallerBudgetPushesOutAtOnce) {
  HostTier tier(100 * kPartBytes);
  for (int64_t block = 1; block <= 100; ++block) tier.Insert(block, 0, 0, kRow, PartOf(block), tier.erasures());
  for (int64_t block = 91; block <= 100; ++block) static_cast<void>(tier.Find(block, 0, 0, 1, kRow));  // in use
  const HostTier::Bytes held = tier.Find(100, 0, 0, 1, kRow)[0];
  tier.SetBudget(20 * kPartBytes);
  EXPECT_EQ(tier.bytes(), 20 * kPartBytes);
  for (int64_t block = 91; block <= 100; ++block) EXPECT_NE(tier.Find(block, 0, 0, 1, kRow)[0], nullptr) << block;
  tier.SetBudget(0);
  EXPECT_EQ(tier.bytes(), 0);
  tier.Insert(1, 0, 0, kRow, PartOf(1), tier.erasures());
  EXPECT_EQ(tier.bytes(), 0);
  EXPECT_TRUE(std::equal(held.get(), held.get() + kPartBytes, PartOf(100).begin()));
  tier.SetBudget(kPartBytes);
  tier.Insert(1, 0, 0, kRow, PartOf(1), tier.erasures());
  EXPECT_NE(tier.Find(1, 0, 0, 1, kRow)[0], nullptr);
}

class StoreTiers : public StoreFolderTest {
 protected:
  void HideSegments() const { std::filesystem::rename(folder_ / "segments", root_ / "hidden"); }
};

TEST_F(StoreTiers, WhatWasWrittenOrReadIsReadFromRam) {
  const TestBlock block(1, 50);
  {
    const auto store = Create({.host_bytes = 1 << 20});
    ASSERT_OK(AppendTo(*store, block.Draft()).status());
    EXPECT_EQ(PayloadInRam(*store), std::ssize(block.payload));
    HideSegments();
    ExpectStored(*store, block, 1);
    std::filesystem::rename(root_ / "hidden", folder_ / "segments");
  }
  const auto store = Open(true, {.host_bytes = 1 << 20});
  EXPECT_EQ(PayloadInRam(*store), 0);
  std::vector<std::byte> out;
  ASSERT_OK(ReadParts(*store, block, 1, 2, 1, 2, out));  // two parts of a page come in
  EXPECT_EQ(PayloadInRam(*store), std::ssize(out));
  ASSERT_OK(ReadParts(*store, block, 1, 2, 0, kLayers, out));  // the others are fetched around them
  EXPECT_TRUE(out == block.Parts(2, 0, kLayers));
  HideSegments();
  ASSERT_OK(ReadParts(*store, block, 1, 2, 0, kLayers, out));
  EXPECT_TRUE(out == block.Parts(2, 0, kLayers));
}

TEST_F(StoreTiers, WithoutHostBytesEveryReadIsFromDisk) {
  const TestBlock block(1, 50);
  const auto store = Create({.host_bytes = 0});
  ASSERT_OK(AppendTo(*store, block.Draft()).status());
  EXPECT_EQ(PayloadInRam(*store), 0);
  ExpectStored(*store, block, 1);
  std::filesystem::resize_file(folder_ / "segments" / "000001.kvseg", 0);
  std::vector<std::byte> out;
  EXPECT_EQ(ReadBlock(*store, block, 1, out).code(), StatusCode::kCorrupt);
}

TEST_F(StoreTiers, ASmallTierAnswersRightFromBothSides) {
  std::vector<TestBlock> blocks;
  const auto store = Create({.host_bytes = 30'000});
  for (uint64_t i = 0; i < 8; ++i) {
    blocks.emplace_back(i, 40);
    ASSERT_OK(AppendTo(*store, blocks.back().Draft()).status());
  }
  std::mt19937_64 random = Repeatable(5);
  for (int i = 0; i < 300; ++i) {
    const auto id = static_cast<int64_t>(1 + random() % 8);
    const TestBlock& block = blocks[static_cast<size_t>(id - 1)];
    const auto page = static_cast<int32_t>(random() % 3);
    const auto first = static_cast<int32_t>(random() % kLayers);
    const auto parts = static_cast<int32_t>(1 + random() % static_cast<uint64_t>(kLayers - first));
    std::vector<std::byte> out;
    ASSERT_OK(ReadParts(*store, block, id, page, first, parts, out));
    ASSERT_TRUE(out == block.Parts(page, first, parts));
    EXPECT_LE(PayloadInRam(*store), 30'000);
  }
}

TEST_F(StoreTiers, PayloadHasWhatTheIndexesLeave) {
  constexpr int64_t kHostBytes = 80'000;
  const auto store = Create({.host_bytes = kHostBytes});
  const TestBlock block(1, 40);
  int64_t id = 0;
  const auto fill = [&] {
    for (int i = 0; i < 20; ++i) id = AppendTo(*store, block.Draft()).value();
  };
  fill();
  const int64_t all = PayloadInRam(*store);
  EXPECT_GT(all, kHostBytes / 2);
  for (const int64_t index_bytes : {int64_t{50'000}, int64_t{60'000}, 10 * kHostBytes, int64_t{0}}) {
    store->SetIndexBytes(index_bytes);
    const int64_t left = std::max(kHostBytes - index_bytes, kHostBytes / kLeastPayloadShare);
    EXPECT_LE(PayloadInRam(*store), left);
    EXPECT_EQ(store->Stats()->index_bytes, index_bytes);
    fill();
    EXPECT_LE(PayloadInRam(*store), left);
    ExpectStored(*store, block, 1);
    ExpectStored(*store, block, id);
  }
  EXPECT_GT(PayloadInRam(*store), all * 9 / 10);
}

// Return what a memory in RAM holds in all with so many blocks: payload, and the catalog that names it.
int64_t HeldInRam(const TestBlock& block, int64_t blocks) {
  const auto store = MemoryStore::Create(std::nullopt, TestManifest()).value();
  for (int64_t i = 0; i < blocks; ++i) EXPECT_OK(store->Submit(block.Draft()).status());
  return store->Stats()->host_bytes;
}

TEST_F(StoreTiers, AMemoryInRamCountsItsIndexes) {
  const TestBlock block(1, 40);  // about 9 KB of payload in 24 KiB of records
  const auto store =
      MemoryStore::Create(std::nullopt, TestManifest(), {.host_bytes = HeldInRam(block, 1) + 80'000}).value();
  ASSERT_OK(store->Submit(block.Draft()).status());
  store->SetIndexBytes(80'000);
  EXPECT_EQ(store->Submit(block.Draft()).status().code(), StatusCode::kCapacity);
  ExpectStored(*store, block, 1);
  store->SetIndexBytes(10'000);
  ASSERT_OK(store->Submit(block.Draft()).status());
}

TEST_F(StoreTiers, AMemoryInRamKeepsItsBudget) {
  const TestBlock block(1, 40);  // about 9 KB of payload in 24 KiB of records
  const int64_t budget = HeldInRam(block, 4) + 20'000;
  const auto store = MemoryStore::Create(std::nullopt, TestManifest(), {.host_bytes = budget}).value();
  for (int64_t id = 1; id <= 4; ++id) ASSERT_EQ(store->Submit(block.Draft()).value(), id);
  const Status refused = store->Submit(block.Draft()).status();
  EXPECT_EQ(refused.code(), StatusCode::kCapacity);
  EXPECT_NE(refused.message().find(std::to_string(budget)), std::string::npos) << refused.message();
  for (int64_t id = 1; id <= 4; ++id) ExpectStored(*store, block, id);
  EXPECT_LE(store->Stats()->host_bytes, budget);
  ASSERT_OK(store->Forget(std::vector<int64_t>{2}));  // makes room at once
  EXPECT_EQ(store->Submit(block.Draft()).value(), 5);
  ExpectStored(*store, block, 5);
  ExpectStored(*store, block, 4);
}

// Without payload all that a memory in RAM holds is its catalog.
TEST_F(StoreTiers, AMemoryInRamCountsItsCatalog) {
  constexpr int64_t kBudget = 1 << 20;
  const auto store = MemoryStore::Create(std::nullopt, TestManifest(), {.host_bytes = kBudget}).value();
  TestBlock block(1, 2048);
  block.payload.clear();
  block.page_bytes.clear();
  const auto fill = [&] {
    std::vector<int64_t> ids;
    while (ids.size() < 1000) {
      const Result<int64_t> id = store->Submit(block.Draft());
      if (!id.ok()) {
        EXPECT_EQ(id.status().code(), StatusCode::kCapacity);
        break;
      }
      ids.push_back(*id);
    }
    return ids;
  };
  const std::vector<int64_t> ids = fill();
  ASSERT_LT(ids.size(), kBudget / block.token_ids.size() / sizeof(int32_t));
  EXPECT_GT(ids.size(), kBudget / block.token_ids.size() / sizeof(int32_t) / 2);
  const StoreStats full = store->Stats().value();
  EXPECT_GE(full.catalog_bytes, static_cast<int64_t>(ids.size() * block.token_ids.size() * sizeof(int32_t)));
  EXPECT_LE(full.host_bytes, kBudget);
  const std::vector<std::string> tags(100, std::string(2048, 'x'));
  EXPECT_EQ(store->AddTags(1, tags).code(), StatusCode::kCapacity);
  EXPECT_EQ(store->PutFile("note", std::vector<std::byte>(200'000)).code(), StatusCode::kCapacity);
  EXPECT_EQ(store->TokenIds(1).value(), block.token_ids);
  for (int round = 0; round < 3; ++round) {  // what is forgotten makes room at once
    ASSERT_OK(store->Forget(std::vector<int64_t>(1, store->Blocks()->front().id)));
    ASSERT_OK(store->Submit(block.Draft()).status());
  }
  std::vector<int64_t> rest;
  const std::vector<BlockInfo> left = store->Blocks().value();
  for (const BlockInfo& info : left) rest.push_back(info.id);
  ASSERT_OK(store->Forget(rest));
  EXPECT_GE(fill().size() + 1, ids.size());
  ASSERT_OK(store->Forget(std::vector<int64_t>(1, store->Blocks()->front().id)));
  ASSERT_OK(store->Forget(std::vector<int64_t>(1, store->Blocks()->front().id)));
  ASSERT_OK(store->PutFile("note", std::vector<std::byte>(8192)));
  EXPECT_GE(PayloadInRam(*store), 8192);
}

TEST_F(StoreTiers, ASmallBudgetBoundsTheCacheOfTheCatalog) {
  {
    const auto store = Create();
    TestBlock block(1, 2048);
    block.payload.clear();
    block.page_bytes.clear();
    for (int i = 0; i < 400; ++i) ASSERT_OK(store->Submit(block.Draft()).status());
    ASSERT_OK(store->Flush(nullptr));
  }
  const auto read_all = [this](int64_t host_bytes) {
    const auto store = Open(false, {.host_bytes = host_bytes});
    for (int64_t id = 1; id <= 400; ++id) EXPECT_EQ(store->TokenIds(id)->size(), 2048U);
    return store->Stats()->catalog_bytes;
  };
  EXPECT_GT(read_all(int64_t{1} << 30), 1'500'000);
  EXPECT_LT(read_all(1 << 20), 500'000);
}

TEST_F(StoreTiers, BatchesAreUnderWayTogether) {
  std::vector<TestBlock> blocks;
  {
    const auto store = Create();
    for (uint64_t i = 0; i < 6; ++i) {
      blocks.emplace_back(i, 64);
      ASSERT_OK(AppendTo(*store, blocks.back().Draft()).status());
    }
  }
  for (const int64_t host_bytes : {int64_t{0}, int64_t{1} << 20}) {
    const auto store = Open(true, {.host_bytes = host_bytes});
    // Layer by layer, each submitted before the one before it is looked at.
    std::vector<std::vector<std::byte>> outs(kLayers);
    std::vector<std::unique_ptr<PendingReads>> pending;
    const auto submit = [&](int32_t layer) {
      std::vector<PageRead> reads;
      std::vector<std::byte>& out = outs[static_cast<size_t>(layer)];
      const auto bytes = static_cast<size_t>(TestPartBytes(kPageTokens));
      out.resize(6 * 4 * bytes);
      for (int64_t id = 1; id <= 6; ++id) {
        for (int32_t page = 0; page < 4; ++page) {
          reads.push_back({id, page, layer, 1, std::span(out).subspan(reads.size() * bytes, bytes)});
        }
      }
      pending.push_back(store->StartReadPages(reads));
    };
    submit(0);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      if (layer + 1 < kLayers) submit(layer + 1);
      ASSERT_OK(pending[static_cast<size_t>(layer)]->Wait());
      ASSERT_OK(pending[static_cast<size_t>(layer)]->Wait());
      size_t at = 0;
      for (const TestBlock& block : blocks) {
        for (int32_t page = 0; page < 4; ++page) {
          const std::vector<std::byte> part = block.Parts(page, layer, 1);
          ASSERT_TRUE(std::equal(part.begin(), part.end(),
                                 outs[static_cast<size_t>(layer)].begin() + static_cast<std::ptrdiff_t>(at)));
          at += part.size();
        }
      }
    }
    submit(0);  // never waited for: its destructor does, before the buffers go
  }
}

TEST_F(StoreTiers, AFailedBatchSaysWhichRead) {
  const TestBlock block(1, 48);
  const auto store = Create({.host_bytes = 0});
  ASSERT_OK(AppendTo(*store, block.Draft()).status());
  std::vector<std::byte> out(block.payload.size());
  const auto bytes = static_cast<size_t>(block.page_bytes[0]);
  const PageRead unknown[] = {{1, 0, 0, kLayers, std::span(out).first(bytes)}, {7, 0, 0, 1, {}}};
  EXPECT_EQ(store->StartReadPages(unknown)->Wait().code(), StatusCode::kNotFound);
  FlipBit(folder_ / "segments" / "000001.kvseg", 8 * (2 * 4096 + 4096 + 20));
  const Status status = ReadBlock(*store, block, 1, out);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("page 1"), std::string::npos) << status.message();
}

// A memory in RAM gives the bytes of what is forgotten back at once, also those that somebody was about to read.
TEST_F(StoreTiers, WhatIsForgottenBeforeItIsReadIsNotFound) {
  const TestBlock block(1, 48);
  const auto store = MemoryStore::Create(std::nullopt, TestManifest()).value();
  ASSERT_OK(AppendTo(*store, block.Draft()).status());
  std::vector<std::byte> out(static_cast<size_t>(block.page_bytes[0]));
  const PageRead read{1, 0, 0, kLayers, out};
  const auto pending = store->StartReadPages({&read, 1});
  ASSERT_OK(store->Forget(std::vector<int64_t>{1}));
  const Status status = pending->Wait();
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
}

// Its bytes lie in the file still, and must not come into RAM when nothing takes them out any more.
TEST_F(StoreTiers, WhatIsForgottenWhileItIsReadIsNotKeptInRam) {
  const TestBlock block(1, 48);
  ASSERT_OK(AppendTo(*Create(), block.Draft()).status());
  const auto store = Open();
  std::vector<std::byte> out(static_cast<size_t>(block.page_bytes[0]));
  const PageRead read{1, 0, 0, kLayers, out};
  const auto pending = store->StartReadPages({&read, 1});  // one read: whoever waits does it
  ASSERT_OK(store->Forget(std::vector<int64_t>{1}));
  ASSERT_OK(pending->Wait());
  EXPECT_EQ(PayloadInRam(*store), 0);
}

class StoreQueue : public StoreFolderTest {};

TEST_F(StoreQueue, WhatIsFlushedIsDurableAndWhatIsQueuedIsRead) {
  std::vector<TestBlock> blocks;
  const auto store = Create({.queue_bytes = 25'000});  // two blocks: the rest waits for room
  for (uint64_t i = 0; i < 30; ++i) {
    blocks.emplace_back(i, 40);
    ASSERT_EQ(store->Submit(blocks.back().Draft()).value(), static_cast<int64_t>(i + 1));
    if (i % 7 == 0) ExpectStored(*store, blocks.back(), static_cast<int64_t>(i + 1));
  }
  std::vector<int64_t> lost = {99};
  ASSERT_OK(store->Flush(&lost));
  EXPECT_TRUE(lost.empty());
  const auto reader = Open(true);
  EXPECT_EQ(reader->Blocks()->size(), 30U);
  for (int64_t id = 1; id <= 30; ++id) ExpectStored(*reader, blocks[static_cast<size_t>(id - 1)], id);
  ASSERT_EQ(AppendTo(*store, blocks[0].Draft()).value(), 31);
}

TEST_F(StoreQueue, APayloadWithAnOwnerIsStoredFromItsPlaceAndThenLetGo) {
  const auto store = Create({.queue_bytes = 25'000});
  std::vector<std::weak_ptr<const void>> owners;
  for (uint64_t i = 0; i < 12; ++i) {
    const TestBlock block(i, 40);
    auto owned = std::make_shared<std::vector<std::byte>>(block.payload);
    BlockDraft draft = block.Draft();
    draft.payload = *owned;
    draft.payload_owner = owned;
    owners.emplace_back(owned);
    ASSERT_OK((i % 3 == 0 ? AppendTo(*store, draft) : store->Submit(draft)).status());
  }
  ASSERT_OK(store->Flush());
  for (uint64_t i = 0; i < 12; ++i) {
    ExpectStored(*store, TestBlock(i, 40), static_cast<int64_t>(i + 1));
    EXPECT_TRUE(owners[i].expired()) << "block " << i + 1;
  }
}

TEST_F(StoreQueue, ClosingCommitsWhatIsQueued) {
  {
    const auto store = Create();
    for (uint64_t i = 0; i < 5; ++i) ASSERT_OK(store->Submit(TestBlock(i, 40).Draft()).status());
  }
  const auto store = Open();
  for (uint64_t i = 0; i < 5; ++i) ExpectStored(*store, TestBlock(i, 40), static_cast<int64_t>(i + 1));
}

TEST_F(StoreQueue, SubmittersAndReadersBesideEachOther) {
  const auto store = Create({.queue_bytes = 60'000});
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&store, seed] {
      for (int i = 0; i < 20; ++i) {
        TestBlock block(seed, 20 + i);
        block.stream = static_cast<int64_t>(seed);
        const Result<int64_t> id = store->Submit(block.Draft());
        ASSERT_OK(id.status());
        if (i % 4 == 0) ExpectStored(*store, block, *id);
        if (i % 5 == 0) {
          EXPECT_OK(store->Flush());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(store->Flush());
  EXPECT_EQ(store->Blocks()->size(), 60U);
  EXPECT_TRUE(store->Verify(false)->damage.empty());
}

}  // namespace
}  // namespace everlong::store
