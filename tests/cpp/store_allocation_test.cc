// A store when an allocation fails: on the thread that stores, on those that read, on the caller's. What is said is
// kCapacity, the process goes on, and what was acknowledged is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base_allocation_failures.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

class StoreAllocation : public StoreFolderTest {};

TestBlock BlockOf(int64_t id) { return {static_cast<uint64_t>(id), 20 + id % 30, 100 * id}; }

// Submits until nothing strikes any more, each time one allocation later.
void SubmitUnder(MemoryStore& store, AllocatingThread of, std::vector<int64_t>& stored) {
  bool struck = true;
  int64_t strikes = 0;
  for (int64_t left = 0; struck && !testing::Test::HasFailure(); ++left) {
    SCOPED_TRACE("allocation " + std::to_string(left));
    std::set<int64_t> submitted;
    std::vector<int64_t> lost;
    Status flushed;
    lost.reserve(16);
    {
      const TestBlock block = BlockOf(left);
      const BlockDraft draft = block.Draft();
      Status refused;
      std::vector<int64_t> ids;
      ids.reserve(2);
      {
        const OneAllocationFails shortage(of, left);
        for (int i = 0; i < 2; ++i) {
          const Result<int64_t> id = store.Submit(draft);
          if (id.ok()) {
            ids.push_back(*id);
          } else {
            refused = id.status();
          }
        }
        flushed = store.Flush(&lost);
        struck = shortage.struck();
      }
      submitted.insert(ids.begin(), ids.end());
      strikes += struck ? 1 : 0;
      ASSERT_TRUE(refused.ok() || refused.code() == StatusCode::kCapacity) << refused.ToString();
      ASSERT_TRUE(flushed.ok() || flushed.code() == StatusCode::kCapacity) << flushed.ToString();
      ASSERT_EQ(flushed.ok(), lost.empty());
      for (const int64_t id : lost) ASSERT_EQ(submitted.erase(id), 1U);
      for (const int64_t id : submitted) ExpectStored(store, block, id);
      stored.insert(stored.end(), submitted.begin(), submitted.end());
    }
  }
  EXPECT_GT(strikes, 20);
}

TEST_F(StoreAllocation, ABlockThatThereIsNoMemoryForIsRefusedOrLost) {
  for (const bool in_ram : {false, true}) {
    const auto place = in_ram ? std::nullopt : std::optional(folder_);
    const auto store = MemoryStore::Create(place, TestManifest(), {.segment_bytes = 256 * 1024}).value();
    std::vector<int64_t> stored;
    SubmitUnder(*store, AllocatingThread::kCallers, stored);
    if (!in_ram) SubmitUnder(*store, AllocatingThread::kOthers, stored);
    const std::vector<BlockInfo> infos = store->Blocks().value();
    std::vector<int64_t> there;
    for (const BlockInfo& info : infos) there.push_back(info.id);
    EXPECT_EQ(there, stored);
    ExpectUndamaged(*store);
  }
}

TEST_F(StoreAllocation, AReadThatThereIsNoMemoryForIsDoneAgainOrRefused) {
  constexpr int64_t kBlocks = 12;
  {
    const auto store = Create();
    for (int64_t id = 1; id <= kBlocks; ++id) ASSERT_OK(AppendTo(*store, BlockOf(id).Draft()).status());
  }
  for (const AllocatingThread of : {AllocatingThread::kOthers, AllocatingThread::kCallers}) {
    bool struck = true;
    int64_t quiet = 0;  // the threads share the reads as they come, so that a few in a row must be without a strike
    for (int64_t left = 0; quiet < 5 && !HasFailure(); ++left) {
      SCOPED_TRACE("allocation " + std::to_string(left));
      const auto store = Open(false, {.host_bytes = 60'000});  // a tier that must evict
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<std::byte>> buffers;
        std::vector<PageRead> reads;
        for (int64_t id = 1; id <= kBlocks; ++id) {
          const TestBlock block = BlockOf(id);
          for (int32_t page = 0; page < block.pages(); ++page) {
            buffers.emplace_back(static_cast<size_t>(block.page_bytes[static_cast<size_t>(page)]));
          }
        }
        size_t at = 0;
        for (int64_t id = 1; id <= kBlocks; ++id) {
          const TestBlock block = BlockOf(id);
          for (int32_t page = 0; page < block.pages(); ++page) {
            reads.push_back({id, page, 0, kLayers, buffers[at]});
            ++at;
          }
        }
        Status status;
        {
          const OneAllocationFails shortage(of, round == 1 ? left : -1);
          status = store->ReadPages(reads);
          if (round == 1) struck = shortage.struck();
        }
        if (round == 1 && of == AllocatingThread::kCallers && struck) {
          ASSERT_TRUE(status.ok() || status.code() == StatusCode::kCapacity) << status.ToString();
          if (!status.ok()) continue;
        }
        ASSERT_OK(status);
        at = 0;
        for (int64_t id = 1; id <= kBlocks; ++id) {
          const TestBlock block = BlockOf(id);
          for (int32_t page = 0; page < block.pages(); ++page) {
            ASSERT_EQ(buffers[at], block.Parts(page, 0, kLayers));
            ++at;
          }
        }
      }
      quiet = struck ? 0 : quiet + 1;
    }
  }
}

// Calls `work` with ever later allocations that fail, until none is reached any more. What it returns is kCapacity
// then, or what it also returns otherwise. `before` and `after` are not under it.
void UnderEveryFailure(const std::function<Status()>& work, const std::function<void()>& before,
                       const std::function<void(const Status&)>& after) {
  bool struck = true;
  int64_t given = 0;
  for (; struck && !testing::Test::HasFailure(); ++given) {
    SCOPED_TRACE("allocation " + std::to_string(given));
    before();
    Status status;
    {
      const OneAllocationFails shortage(given);
      status = work();
      struck = shortage.struck();
    }
    ASSERT_TRUE(status.ok() || (struck && status.code() == StatusCode::kCapacity)) << status.ToString();
    after(status);
  }
  EXPECT_GT(given, 20);
}

void ExpectTensors(const MemoryStore& store, int64_t id, const std::vector<TensorView>& expected) {
  const std::vector<TensorInfo> infos = store.Tensors(id).value();
  ASSERT_EQ(infos.size(), expected.size());
  for (size_t i = 0; i < infos.size(); ++i) {
    EXPECT_EQ(infos[i].name, expected[i].name);
    const Tensor tensor = store.ReadTensor(id, infos[i].name).value();
    EXPECT_EQ(tensor.shape, expected[i].shape);
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, expected[i].bytes));
  }
}

TEST_F(StoreAllocation, TensorsThatThereIsNoMemoryForAreRefusedOrAllThere) {
  for (const bool in_ram : {false, true}) {
    const auto place = in_ram ? std::nullopt : std::optional(folder_);
    const auto store = MemoryStore::Create(place, TestManifest(), {.segment_bytes = 256 * 1024}).value();
    const TestBlock block = BlockOf(1);
    const TestBlock other = BlockOf(2);
    const std::vector<TensorView> one = block.Tensors();
    const std::vector<TensorView> two = other.Tensors();
    ASSERT_OK(AppendTo(*store, block.Draft()).status());
    UnderEveryFailure([&] { return store->PutTensors(1, two); }, [&] { ASSERT_OK(store->PutTensors(1, one)); },
                      [&](const Status& status) {
                        const bool put = status.ok() || store->ReadTensor(1, "ids")->shape == two[1].shape;
                        ExpectTensors(*store, 1, put ? two : one);
                      });
    std::vector<TensorView> tensors;
    const BlockDraft draft = other.FullDraft(tensors);
    BlockDraft plain = other.Draft();
    plain.tensors = tensors;
    int64_t id = 0;
    UnderEveryFailure(
        [&] {
          const Result<int64_t> submitted = store->Submit(plain);
          id = submitted.ok() ? *submitted : 0;
          return submitted.status();
        },
        [&] { ASSERT_OK(store->Flush()); },
        [&](const Status& status) {
          if (!status.ok()) return;
          ASSERT_OK(store->Flush());
          ExpectStored(*store, other, id);
          ExpectTensors(*store, id, tensors);
        });
    EXPECT_TRUE(store->Verify(false)->damage.empty());
  }
}

TEST_F(StoreAllocation, TensorsThatTheStoringThreadHasNoMemoryForAreLost) {
  const auto store = Create();
  const TestBlock block = BlockOf(1);
  const std::vector<TensorView> tensors = block.Tensors();
  BlockDraft draft = block.Draft();
  draft.tensors = tensors;
  bool struck = true;
  for (int64_t given = 0; struck && !HasFailure(); ++given) {
    SCOPED_TRACE("allocation " + std::to_string(given));
    Status flushed;
    std::vector<int64_t> lost;
    lost.reserve(2);
    int64_t id = 0;
    {
      const OneAllocationFails shortage(AllocatingThread::kOthers, given);
      id = store->Submit(draft).value();
      flushed = store->Flush(&lost);
      struck = shortage.struck();
    }
    ASSERT_TRUE(flushed.ok() || flushed.code() == StatusCode::kCapacity) << flushed.ToString();
    ASSERT_EQ(flushed.ok(), lost.empty());
    if (flushed.ok()) ExpectTensors(*store, id, tensors);
  }
  EXPECT_TRUE(store->Verify(false)->damage.empty());
}

TEST_F(StoreAllocation, WhatIsReadAnewIsWholeOrRefusedAndNothingIsTakenForDamaged) {
  const TestBlock block = BlockOf(1);
  const std::vector<TensorView> tensors = block.Tensors();
  BlockDraft draft = block.Draft();
  draft.tensors = tensors;
  const auto store = Create();
  ASSERT_OK(AppendTo(*store, draft).status());
  UnderEveryFailure([&] { return store->SetAttribute("key", "new"); },
                    [&] { ASSERT_OK(store->SetAttribute("key", "old")); },
                    [&](const Status& status) {
                      EXPECT_EQ(store->manifest().attributes.at("key"), status.ok() ? "new" : "old");
                      ASSERT_OK(ReadManifest(folder_).status());
                    });
  UnderEveryFailure(
      [&] {
        const Result<VerifyReport> report = store->Verify(true);
        EXPECT_TRUE(!report.ok() || report->damage.empty());
        return report.status();
      },
      [] {}, [](const Status&) {});
  ExpectStored(*store, block, 1);
  ExpectTensors(*store, 1, tensors);
  // Into RAM: the C++ library's own walk through a folder ends the process where it gets no memory.
  const TemporaryFolder exports;
  const std::filesystem::path file = exports.path() / "memory";
  ASSERT_OK(store->Export(file));
  std::unique_ptr<MemoryStore> imported;
  UnderEveryFailure(
      [&] {
        Result<std::unique_ptr<MemoryStore>> made = MemoryStore::Import(file, std::nullopt, {.host_bytes = 1 << 20});
        if (made.ok()) imported = std::move(made).value();
        return made.status();
      },
      [&] { imported.reset(); },
      [&](const Status& status) {
        ASSERT_EQ(imported != nullptr, status.ok());
        if (!status.ok()) return;
        ExpectStored(*imported, block, 1);
        ExpectTensors(*imported, 1, tensors);
      });
}

}  // namespace
}  // namespace everlong::store
