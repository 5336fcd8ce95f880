// A side stream's copies: what waits for what, by a runtime that only records; whose error is whose; that nobody is
// held up by somebody else's wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "everlong/kv/stream_runtime.h"
#include "kv_recording_runtime.h"

namespace everlong::kv {
namespace {

using recording::kFails;
using recording::RecordingRuntime;

class StreamCopyQueueTest : public testing::Test {
 protected:
  Result<uint64_t> Enqueue(int64_t bytes, const StreamPoint& after = nullptr) {
    return queue().Enqueue(std::vector<CopyRun>{{nullptr, nullptr, bytes}}, after);
  }
  [[nodiscard]] CopyQueue& queue() const { return *queue_; }
  [[nodiscard]] RecordingRuntime& runtime() const { return *runtime_; }
  void EndQueue() { queue_.reset(); }
  void* consumer() { return &consumer_; }

 private:
  int consumer_ = 0;
  std::shared_ptr<RecordingRuntime> runtime_ = std::make_shared<RecordingRuntime>();
  std::unique_ptr<CopyQueue> queue_ = MakeStreamCopyQueue(runtime_).value();
};

TEST_F(StreamCopyQueueTest, ACopyToTheDeviceRunsBesideWhatDoesNotUseItsTarget) {
  const size_t last_use = runtime().Work(consumer());
  const StreamPoint free = queue().PointOf(consumer()).value();
  const size_t unrelated = runtime().Work(consumer());
  const uint64_t ticket = Enqueue(8, free).value();
  const size_t copy = runtime().copies().at(0);
  const size_t meanwhile = runtime().Work(consumer());
  ASSERT_TRUE(queue().OrderAfter(ticket, consumer()).ok());
  const size_t use = runtime().Work(consumer());

  EXPECT_TRUE(runtime().Precedes(last_use, copy));
  EXPECT_FALSE(runtime().Precedes(unrelated, copy)) << "the copy waits for work that it has nothing to do with";
  EXPECT_FALSE(runtime().Precedes(copy, meanwhile)) << "the consumer waits before it uses the copy";
  EXPECT_TRUE(runtime().Precedes(copy, use));
}

TEST_F(StreamCopyQueueTest, ACopyIntoFreshMemoryWaitsForNothing) {
  const size_t before = runtime().Work(consumer());
  ASSERT_TRUE(Enqueue(8).ok());
  EXPECT_FALSE(runtime().Precedes(before, runtime().copies().at(0)));
}

TEST_F(StreamCopyQueueTest, ACopyToTheHostWaitsForItsProducerAndNobodyForIt) {
  const size_t producer = runtime().Work(consumer());
  const StreamPoint produced = queue().PointOf(consumer()).value();
  const size_t next = runtime().Work(consumer());
  ASSERT_TRUE(Enqueue(8, produced).ok());
  const size_t copy = runtime().copies().at(0);
  const size_t after = runtime().Work(consumer());
  EXPECT_TRUE(runtime().Precedes(producer, copy));
  EXPECT_FALSE(runtime().Precedes(next, copy));
  EXPECT_FALSE(runtime().Precedes(copy, after));
}

TEST_F(StreamCopyQueueTest, BatchesRunInOrderAfterAPointOfAnyConsumer) {
  int other_consumer = 0;
  const size_t elsewhere = runtime().Work(&other_consumer);
  const StreamPoint point = queue().PointOf(&other_consumer).value();
  ASSERT_TRUE(queue().Enqueue(std::vector<CopyRun>{{nullptr, nullptr, 1}, {nullptr, nullptr, 0}}, point).ok());
  const uint64_t second = Enqueue(2).value();
  const auto copies = runtime().copies();
  ASSERT_EQ(copies.size(), 2U) << "nothing is copied for no bytes";
  EXPECT_TRUE(runtime().Precedes(elsewhere, copies[0]));
  EXPECT_TRUE(runtime().Precedes(copies[0], copies[1]));
  ASSERT_TRUE(queue().OrderAfter(second, consumer()).ok());
  EXPECT_TRUE(runtime().Precedes(copies[0], runtime().Work(consumer())));
}

TEST_F(StreamCopyQueueTest, AConsumerNeedNotWaitForWhatHasPassed) {
  const uint64_t ticket = Enqueue(1).value();
  ASSERT_TRUE(queue().Wait(ticket).ok());
  EXPECT_EQ(runtime().events(), 0U);
  EXPECT_TRUE(queue().OrderAfter(ticket, consumer()).ok());
  EXPECT_FALSE(runtime().Precedes(runtime().copies().at(0), runtime().Work(consumer())));
}

TEST_F(StreamCopyQueueTest, WhatHasPassedIsForgotten) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Enqueue(1).ok());
  EXPECT_FALSE(queue().Passed(1));
  EXPECT_EQ(runtime().events(), 3U);
  ASSERT_TRUE(queue().Wait(2).ok());
  EXPECT_TRUE(queue().Passed(1));
  EXPECT_TRUE(queue().Passed(2));
  EXPECT_FALSE(queue().Passed(3));
  EXPECT_EQ(runtime().events(), 1U);
  runtime().PassAll();
  EXPECT_TRUE(queue().Passed(3));
  EXPECT_EQ(runtime().events(), 0U);
}

TEST_F(StreamCopyQueueTest, AnErrorIsItsOwnersAlone) {
  for (const int64_t bytes : {int64_t{1}, kFails, int64_t{2}, kFails, int64_t{3}}) ASSERT_TRUE(Enqueue(bytes).ok());
  EXPECT_TRUE(queue().Wait(3).ok()) << "the second failed, not the third";
  EXPECT_TRUE(queue().Passed(2)) << "to wait for it takes no time";
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(queue().Wait(2).message(), "copy failed");
    EXPECT_EQ(queue().OrderAfter(2, consumer()).message(), "copy failed");
    EXPECT_TRUE(queue().Wait(1).ok());
    EXPECT_TRUE(queue().OrderAfter(1, consumer()).ok());
  }
  EXPECT_EQ(queue().Wait(4).message(), "copy failed");
  EXPECT_TRUE(queue().Wait(5).ok());
  EXPECT_EQ(queue().Wait(4).message(), "copy failed");
}

TEST_F(StreamCopyQueueTest, WhatIsRefusedIsNotUnderWay) {
  const std::vector<CopyRun> two = {{nullptr, nullptr, 1}, {nullptr, nullptr, 1}};
  runtime().copies_left = 1;
  EXPECT_EQ(queue().Enqueue(two, nullptr).status().message(), "no copy");
  EXPECT_EQ(runtime().synchronized, 1) << "the first of the two may have begun";
  runtime().copies_left = 100;
  runtime().records_left = 0;
  EXPECT_EQ(queue().Enqueue(two, nullptr).status().message(), "no event");
  EXPECT_EQ(runtime().synchronized, 2);
  EXPECT_EQ(queue().PointOf(consumer()).status().message(), "no event");
  runtime().records_left = 100;
  EXPECT_EQ(Enqueue(1).value(), 1U);
  EXPECT_TRUE(queue().Wait(1).ok());
}

TEST_F(StreamCopyQueueTest, WithoutAStreamThereIsNoQueue) {
  const auto none = std::make_shared<RecordingRuntime>();
  none->streams_left = 0;
  EXPECT_EQ(MakeStreamCopyQueue(none).status().message(), "no stream");
}

TEST_F(StreamCopyQueueTest, PointsOutliveTheirQueue) {
  StreamPoint point = queue().PointOf(consumer()).value();
  ASSERT_TRUE(Enqueue(1, point).ok());
  EndQueue();
  EXPECT_EQ(runtime().streams_destroyed, 1) << "a queue ends after its work";
  EXPECT_EQ(runtime().events(), 1U);
  point.reset();
  EXPECT_EQ(runtime().events(), 0U);
}

TEST_F(StreamCopyQueueTest, NobodyIsHeldUpByAnothersWait) {
  ASSERT_TRUE(Enqueue(1).ok());
  ASSERT_TRUE(queue().Wait(1).ok());
  const uint64_t slow = Enqueue(1).value();
  std::promise<void> others_are_through;
  std::atomic<bool> in_time = false;
  std::once_flag once;
  std::thread others;
  runtime().while_waiting = [&] {
    std::call_once(once, [&] {
      others = std::thread([&] {
        EXPECT_TRUE(queue().Wait(1).ok());
        EXPECT_FALSE(queue().Passed(slow));
        const auto point = queue().PointOf(consumer());
        EXPECT_TRUE(point.ok());
        const auto next = Enqueue(2, *point);
        EXPECT_TRUE(next.ok());
        EXPECT_TRUE(queue().OrderAfter(*next, consumer()).ok());
        runtime().PassAll();
        EXPECT_TRUE(queue().Passed(*next)) << "forgotten, while somebody still waits for the one before";
        others_are_through.set_value();
      });
      // They never get there if the queue is locked until this returns.
      in_time = others_are_through.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    });
  };
  EXPECT_TRUE(queue().Wait(slow).ok());
  others.join();
  EXPECT_TRUE(in_time.load());
}

TEST_F(StreamCopyQueueTest, ManyThreadsGetTheirOwnOutcomes) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (int round = 0; round < 50; ++round) {
        const bool fails = (id + round) % 3 == 0;
        const auto ticket = Enqueue(fails ? kFails : 1);
        if (!ticket.ok()) {
          ++wrong;
          continue;
        }
        if (round % 2 == 0) static_cast<void>(queue().Passed(*ticket));
        if (queue().Wait(*ticket).ok() == fails) ++wrong;
        if (!queue().Passed(*ticket)) ++wrong;
        if (queue().Wait(*ticket).ok() == fails) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(runtime().events(), 0U);
}

}  // namespace
}  // namespace everlong::kv
