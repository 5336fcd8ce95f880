#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <semaphore>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "everlong/kv/transfer_engine.h"

namespace everlong::kv {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A device whose copies run when somebody waits for them, and which can fail.
class ManualQueue : public CopyQueue {
 public:
  Result<std::byte*> AllocateHost(int64_t bytes) override {
    ++allocations;
    return new std::byte[static_cast<size_t>(bytes)];
  }
  void FreeHost(std::byte* buffer) override {
    ++frees;
    delete[] buffer;
  }
  Result<StreamPoint> PointOf(void* consumer) override {
    points.push_back(consumer);
    // Whose event it is nobody looks at here.
    return StreamPoint(std::shared_ptr<const void>(), reinterpret_cast<const StreamEvent*>(consumer));
  }
  Result<uint64_t> Enqueue(std::span<const CopyRun> batch, const StreamPoint& after) override {
    if (refuses) return IoError("the device refuses");
    afters.push_back(after.get());
    batches.emplace_back(batch.begin(), batch.end());
    return batches.size();
  }
  Status OrderAfter(uint64_t ticket, void* consumer) override {
    ordered.emplace_back(ticket, consumer);
    return OkStatus();
  }
  Status Wait(uint64_t ticket) override {
    ++waits;
    while (done < ticket) {
      for (const CopyRun& run : batches[done]) std::memcpy(run.to, run.from, static_cast<size_t>(run.bytes));
      ++done;
    }
    return failing == ticket ? IoError("the copy failed") : OkStatus();
  }
  bool Passed(uint64_t ticket) override { return done >= ticket; }

  std::vector<std::vector<CopyRun>> batches;
  std::vector<const void*> afters;
  std::vector<void*> points;
  std::vector<std::pair<uint64_t, void*>> ordered;
  uint64_t done = 0;
  uint64_t failing = 0;
  bool refuses = false;
  int waits = 0;
  int allocations = 0;
  int frees = 0;
};

std::shared_ptr<StagingBuffer> Acquired(TransferEngine& engine, int64_t bytes) {
  auto buffer = engine.Acquire(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
  return std::move(buffer).value();
}

void Fill(const StagingBuffer& buffer, std::byte value) { std::ranges::fill(buffer.bytes(), value); }

TEST(TransferEngine, PagesGoThereAndBack) {
  const std::shared_ptr<CopyQueue> there = MakeWorkerCopyQueue();
  const std::shared_ptr<CopyQueue> back = MakeWorkerCopyQueue();
  TransferEngine engine(there, back, 4 * kMiB);
  std::vector<std::byte> device(300'000);
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    const auto buffer = Acquired(engine, 200'000);
    for (std::byte& byte : buffer->bytes()) byte = static_cast<std::byte>(random());
    const std::vector<std::byte> sent(buffer->bytes().begin(), buffer->bytes().end());
    // Three pages of a batch, scattered over the device; nothing of the fourth.
    const std::vector<TransferSegment> segments = {{0, 70'000, device.data() + 200'000},
                                                   {70'000, 1, device.data() + 150'000},
                                                   {70'001, 129'999, device.data()},
                                                   {200'000, 0, nullptr}};
    const auto transfer = engine.ToDevice(buffer, segments, nullptr);
    ASSERT_TRUE(transfer.ok());
    ASSERT_TRUE(engine.Wait(*transfer).ok());
    const auto returned = Acquired(engine, 200'000);
    Fill(*returned, std::byte{0});
    const auto fetched = engine.ToHost(returned, segments, nullptr);
    ASSERT_TRUE(fetched.ok());
    ASSERT_TRUE(engine.Wait(*fetched).ok());
    EXPECT_TRUE(std::ranges::equal(returned->bytes(), sent));
  }
}

TEST(TransferEngine, BatchesArriveInOrder) {
  TransferEngine engine(MakeWorkerCopyQueue(), MakeWorkerCopyQueue(), kMiB);
  std::vector<std::byte> device(50'000);
  Transfer last;
  for (int value = 1; value <= 200; ++value) {
    const auto buffer = Acquired(engine, 50'000);
    Fill(*buffer, static_cast<std::byte>(value));
    last = engine.ToDevice(buffer, std::vector<TransferSegment>{{0, 50'000, device.data()}}, nullptr).value();
  }
  ASSERT_TRUE(engine.Wait(last).ok());
  EXPECT_EQ(device, std::vector<std::byte>(50'000, std::byte{200}));
}

TEST(TransferEngine, AnUnderWayBufferIsNobodyElses) {
  const auto queue = std::make_shared<ManualQueue>();
  TransferEngine engine(queue, queue, 4 * kMiB);
  std::vector<std::byte> device(100'000);
  auto first = Acquired(engine, 100'000);
  const std::byte* data = first->bytes().data();
  Fill(*first, std::byte{7});
  const StreamPoint last_use = engine.PointOf(&device).value();
  EXPECT_EQ(queue->points, std::vector<void*>{&device});
  const auto transfer = engine.ToDevice(first, std::vector<TransferSegment>{{0, 100'000, device.data()}}, last_use);
  ASSERT_TRUE(transfer.ok());
  EXPECT_EQ(queue->afters, std::vector<const void*>{&device});
  EXPECT_TRUE(queue->ordered.empty());
  EXPECT_TRUE(engine.OrderAfter(*transfer, &device).ok());
  EXPECT_EQ(queue->ordered, (std::vector<std::pair<uint64_t, void*>>{{1, &device}}));
  first.reset();
  {
    const auto second = Acquired(engine, 100'000);
    EXPECT_NE(second->bytes().data(), data);
    Fill(*second, std::byte{9});
  }
  ASSERT_TRUE(engine.Wait(*transfer).ok());
  EXPECT_EQ(device, std::vector<std::byte>(100'000, std::byte{7}));
  // Done: both pieces serve again, without a new allocation.
  const auto third = Acquired(engine, 100'000);
  const auto fourth = Acquired(engine, 100'000);
  EXPECT_TRUE(third->bytes().data() == data || fourth->bytes().data() == data);
  EXPECT_EQ(queue->allocations, 2);
}

TEST(TransferEngine, EachDirectionOrdersItsOwnTransfers) {
  const auto there = std::make_shared<ManualQueue>();
  const auto back = std::make_shared<ManualQueue>();
  TransferEngine engine(there, back, kMiB);
  std::byte device{};
  const std::vector<TransferSegment> one = {{0, 1, &device}};
  const StreamPoint produced = engine.PointOf(&engine).value();
  const Transfer fetched = engine.ToHost(Acquired(engine, 1), one, produced).value();
  const Transfer sent = engine.ToDevice(Acquired(engine, 1), one, nullptr).value();
  EXPECT_EQ(back->afters, std::vector<const void*>{&engine});
  EXPECT_EQ(there->afters, std::vector<const void*>{nullptr});
  EXPECT_TRUE(engine.OrderAfter(fetched, &device).ok());
  EXPECT_TRUE(there->ordered.empty());
  EXPECT_EQ(back->ordered, (std::vector<std::pair<uint64_t, void*>>{{1, &device}}));
  EXPECT_TRUE(engine.OrderAfter(sent, &engine).ok());
  EXPECT_EQ(there->ordered, (std::vector<std::pair<uint64_t, void*>>{{1, &engine}}));
}

// The worker's consumer is the caller.
TEST(TransferEngine, OnTheHostTheCallerIsOrderedAfterACopy) {
  TransferEngine engine(MakeWorkerCopyQueue(), MakeWorkerCopyQueue(), 64 * kMiB);
  std::vector<std::byte> device(16 * kMiB);
  const auto buffer = Acquired(engine, 16 * kMiB);
  Fill(*buffer, std::byte{3});
  EXPECT_EQ(engine.PointOf(&device).value(), nullptr);
  const std::vector<TransferSegment> all = {{0, 16 * kMiB, device.data()}};
  const Transfer transfer = engine.ToDevice(buffer, all, nullptr).value();
  ASSERT_TRUE(engine.OrderAfter(transfer, nullptr).ok());
  EXPECT_EQ(device.back(), std::byte{3});
}

TEST(TransferEngine, AFullPoolWaitsForTheOldestTransfer) {
  const auto queue = std::make_shared<ManualQueue>();
  TransferEngine engine(queue, queue, 2 * kMiB);
  std::vector<std::byte> device(kMiB);
  const auto send = [&](int value) {
    const auto buffer = Acquired(engine, kMiB);
    Fill(*buffer, static_cast<std::byte>(value));
    return engine.ToDevice(buffer, std::vector<TransferSegment>{{0, kMiB, device.data()}}, nullptr).value();
  };
  send(1);
  send(2);
  EXPECT_EQ(queue->waits, 0);
  const Transfer last = send(3);
  EXPECT_EQ(queue->waits, 1);
  EXPECT_EQ(queue->done, 1U);
  EXPECT_EQ(device.front(), std::byte{1});
  EXPECT_EQ(queue->allocations, 2);
  ASSERT_TRUE(engine.Wait(last).ok());
  EXPECT_EQ(device.front(), std::byte{3});
}

TEST(TransferEngine, BackPressureCountsBothDirections) {
  const auto there = std::make_shared<ManualQueue>();
  const auto back = std::make_shared<ManualQueue>();
  TransferEngine engine(there, back, kMiB);
  std::vector<std::byte> device(kMiB);
  ASSERT_TRUE(
      engine.ToHost(Acquired(engine, kMiB), std::vector<TransferSegment>{{0, kMiB, device.data()}}, nullptr).ok());
  EXPECT_EQ(Acquired(engine, 10)->bytes().size(), 10U);
  EXPECT_EQ(back->waits, 1);
  EXPECT_EQ(there->waits, 0);
}

TEST(TransferEngine, WhatCannotBeGivenIsRefused) {
  const auto queue = std::make_shared<ManualQueue>();
  TransferEngine engine(queue, queue, kMiB);
  EXPECT_EQ(engine.Acquire(kMiB + 1).status().code(), StatusCode::kCapacity);
  EXPECT_EQ(engine.Acquire(-1).status().code(), StatusCode::kInvalidArgument);
  {
    const auto held = Acquired(engine, kMiB);
    // Nobody hands it over: to wait would never end.
    EXPECT_EQ(engine.Acquire(1).status().code(), StatusCode::kCapacity);
    for (const TransferSegment& bad :
         {TransferSegment{-1, 1, nullptr}, TransferSegment{0, kMiB + 1, nullptr}, TransferSegment{kMiB, 1, nullptr},
          TransferSegment{1, std::numeric_limits<int64_t>::max(), nullptr}, TransferSegment{0, -1, nullptr}}) {
      EXPECT_EQ(engine.ToDevice(held, std::vector{bad}, nullptr).status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(engine.ToHost(held, std::vector{bad}, nullptr).status().code(), StatusCode::kInvalidArgument);
    }
    EXPECT_TRUE(queue->batches.empty());
  }
  EXPECT_EQ(Acquired(engine, 1)->bytes().size(), 1U);
}

TEST(TransferEngine, WhoHoldsForLongLeavesRoomForOthers) {
  const auto queue = std::make_shared<ManualQueue>();
  TransferEngine engine(queue, queue, 4 * kMiB);
  std::vector<std::shared_ptr<StagingBuffer>> held;
  for (int i = 0; i < 5; ++i) {
    const auto buffer = engine.TryAcquire(kMiB, 2 * kMiB);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(*buffer != nullptr, i < 2) << i;
    if (*buffer != nullptr) held.push_back(*buffer);
  }
  const auto first = Acquired(engine, kMiB);
  const auto second = Acquired(engine, kMiB);
  EXPECT_EQ(engine.TryAcquire(1).value(), nullptr);
  held.clear();
  EXPECT_EQ(engine.TryAcquire(kMiB, 2 * kMiB).value(), nullptr) << "others hold as much as is kept for them";
  EXPECT_NE(engine.TryAcquire(kMiB, kMiB).value(), nullptr);
  EXPECT_EQ(engine.TryAcquire(1, std::numeric_limits<int64_t>::max()).value(), nullptr);
  EXPECT_EQ(engine.TryAcquire(1, -1).status().code(), StatusCode::kInvalidArgument);
}

// One thread has waited for the only transfer, and its buffer is on its way back: another that asks for it gets it.
TEST(TransferEngine, ABufferIsUnderWayUntilItIsBack) {
  const auto queue = std::make_shared<ManualQueue>();
  TransferEngine engine(queue, queue, kMiB);
  std::byte device{};
  std::binary_semaphore going(0);
  std::binary_semaphore asked(0);
  std::shared_ptr<StagingBuffer> only = Acquired(engine, kMiB);
  // The engine's ownership ends slowly: as long as nobody is refused meanwhile.
  std::shared_ptr<const StagingBuffer> slow(only.get(), [&, only](const StagingBuffer* /*buffer*/) mutable {
    going.release();
    static_cast<void>(asked.try_acquire_for(std::chrono::milliseconds(50)));
    only.reset();
  });
  only.reset();
  const auto transfer =
      engine.ToDevice(std::move(slow), std::vector<TransferSegment>{{0, 1, &device}}, nullptr).value();
  std::thread waiting([&, transfer] { EXPECT_TRUE(engine.Wait(transfer).ok()); });
  going.acquire();
  const auto buffer = engine.Acquire(kMiB);
  asked.release();
  waiting.join();
  EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
}

TEST(TransferEngine, PiecesOfAnotherSizeMakeRoom) {
  const auto queue = std::make_shared<ManualQueue>();
  {
    TransferEngine engine(queue, queue, kMiB);
    std::set<std::shared_ptr<StagingBuffer>> small;
    for (int i = 0; i < 16; ++i) small.insert(Acquired(engine, 1000));
    EXPECT_EQ(queue->allocations, 16);
    small.clear();
    EXPECT_EQ(queue->frees, 0);
    const auto large = Acquired(engine, kMiB);
    EXPECT_EQ(queue->frees, 16);
  }
  EXPECT_EQ(queue->frees, queue->allocations);
}

TEST(TransferEngine, ErrorsComeToLight) {
  const auto queue = std::make_shared<ManualQueue>();
  TransferEngine engine(queue, queue, kMiB);
  std::vector<std::byte> device(kMiB);
  const std::vector<TransferSegment> segments = {{0, kMiB, device.data()}};
  queue->refuses = true;
  EXPECT_EQ(engine.ToDevice(Acquired(engine, kMiB), segments, nullptr).status().message(), "the device refuses");
  queue->refuses = false;

  const auto transfer = engine.ToDevice(Acquired(engine, kMiB), segments, nullptr);  // the refused buffer is back
  ASSERT_TRUE(transfer.ok());
  queue->failing = 1;
  EXPECT_EQ(engine.Wait(*transfer).message(), "the copy failed");

  ASSERT_TRUE(engine.ToDevice(Acquired(engine, kMiB), segments, nullptr).ok());
  queue->failing = 2;
  EXPECT_EQ(engine.Acquire(kMiB).status().message(), "the copy failed");  // back-pressure waited for it

  const auto back = engine.ToHost(Acquired(engine, kMiB), segments, nullptr);
  ASSERT_TRUE(back.ok());
  queue->failing = 3;
  EXPECT_EQ(engine.Wait(*back).message(), "the copy failed");
}

TEST(TransferEngine, EndsAfterItsTransfersAndBuffersMayOutliveIt) {
  std::vector<std::byte> device(kMiB);
  std::shared_ptr<StagingBuffer> kept;
  {
    TransferEngine engine(MakeWorkerCopyQueue(), MakeWorkerCopyQueue(), kMiB);
    kept = Acquired(engine, kMiB);
    Fill(*kept, std::byte{5});
    ASSERT_TRUE(engine.ToDevice(kept, std::vector<TransferSegment>{{0, kMiB, device.data()}}, nullptr).ok());
  }
  EXPECT_EQ(device, std::vector<std::byte>(kMiB, std::byte{5}));
  Fill(*kept, std::byte{6});
  EXPECT_EQ(kept->bytes().back(), std::byte{6});
}

TEST(TransferEngine, ManyThreadsAtOnce) {
  TransferEngine engine(MakeWorkerCopyQueue(), MakeWorkerCopyQueue(), 8 * kMiB);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&engine, &wrong, id] {
      std::vector<std::byte> device(100'000);
      for (int round = 0; round < 50; ++round) {
        const auto value = static_cast<std::byte>(id * 50 + round);
        const std::vector<TransferSegment> segments = {{0, 100'000, device.data()}};
        const auto buffer = Acquired(engine, 100'000);
        Fill(*buffer, value);
        const auto sent = engine.ToDevice(buffer, segments, nullptr);
        if (!sent.ok() || !engine.Wait(*sent).ok()) ++wrong;
        const auto returned = Acquired(engine, 100'000);
        const auto fetched = engine.ToHost(returned, segments, nullptr);
        if (!fetched.ok() || !engine.Wait(*fetched).ok()) ++wrong;
        if (std::ranges::count(returned->bytes(), value) != 100'000) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace everlong::kv
