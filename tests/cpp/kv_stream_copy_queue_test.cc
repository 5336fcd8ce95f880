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

#include "everlong/kv/side_stream.h"

namespace everlong::kv {
namespace {

constexpr int64_t kFails = 666;  // a copy of so many bytes fails when it runs

// Streams of operations in the order of their enqueueing, and which others each begins after. Nothing runs.
class RecordingStream : public SideStream {
 public:
  ~RecordingStream() override { EXPECT_TRUE(events_.empty()) << "every event is destroyed"; }

  // Work of a consumer; names the operation.
  size_t Work(void* stream) {
    const std::lock_guard lock(mutex_);
    return Add(stream, false);
  }
  // Copies so far, as operations.
  std::vector<size_t> copies() {
    const std::lock_guard lock(mutex_);
    return copies_;
  }
  // Whether `first` is over before `second` begins.
  bool Precedes(size_t first, size_t second) {
    const std::lock_guard lock(mutex_);
    return operations_[second].after.contains(first);
  }
  void PassAll() {
    const std::lock_guard lock(mutex_);
    passed_ = operations_.size();
  }
  size_t events() {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

  [[nodiscard]] void* handle() const override { return const_cast<RecordingStream*>(this); }
  Result<std::byte*> AllocateHost(int64_t bytes) override { return new std::byte[static_cast<size_t>(bytes)]; }
  void FreeHost(std::byte* buffer) override { delete[] buffer; }

  Status Copy(const CopyRun& run) override {
    const std::lock_guard lock(mutex_);
    if (copies_left-- <= 0) return IoError("no copy");
    copies_.push_back(Add(handle(), run.bytes == kFails));
    return OkStatus();
  }
  Result<Event> Record(void* stream) override {
    const std::lock_guard lock(mutex_);
    if (records_left-- <= 0) return IoError("no event");
    const size_t operation = Add(stream, false);  // passing it is an operation too
    operations_[operation].fails = operation > 0 && FailsBefore(operation);
    events_.emplace(++named_, operation);
    return reinterpret_cast<Event>(named_);
  }
  Status HoldBack(void* stream, Event event) override {
    const std::lock_guard lock(mutex_);
    const size_t operation = events_.at(reinterpret_cast<uintptr_t>(event));
    std::set<size_t>& held = held_[stream];
    held.insert(operations_[operation].after.begin(), operations_[operation].after.end());
    held.insert(operation);
    return OkStatus();
  }
  Status WaitFor(Event event) override {
    if (while_waiting) while_waiting();
    const std::lock_guard lock(mutex_);
    const size_t operation = events_.at(reinterpret_cast<uintptr_t>(event));
    passed_ = std::max(passed_, operation + 1);
    return operations_[operation].fails ? IoError("copy failed") : OkStatus();
  }
  Result<bool> HasPassed(Event event) override {
    const std::lock_guard lock(mutex_);
    const size_t operation = events_.at(reinterpret_cast<uintptr_t>(event));
    if (operation >= passed_) return false;
    if (operations_[operation].fails) return IoError("copy failed");
    return true;
  }
  void Destroy(Event event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(events_.erase(reinterpret_cast<uintptr_t>(event)), 1U);
  }
  void Synchronize() override { ++synchronized; }

  // Calls that succeed from now on.
  int copies_left = 1 << 30;
  int records_left = 1 << 30;
  std::atomic<int> synchronized = 0;
  std::function<void()> while_waiting;  // of the host, for an event

 private:
  struct Operation {
    void* stream;
    std::set<size_t> after;
    bool fails;
  };

  size_t Add(void* stream, bool fails) {
    std::set<size_t>& held = held_[stream];
    operations_.push_back({stream, held, fails});
    held.insert(operations_.size() - 1);  // a stream runs in order
    return operations_.size() - 1;
  }
  // Whether the copies since the stream's last event hold one that fails.
  [[nodiscard]] bool FailsBefore(size_t event) const {
    for (size_t i = event; i-- > 0;) {
      if (operations_[i].stream != operations_[event].stream) continue;
      const bool is_copy = std::ranges::find(copies_, i) != copies_.end();
      if (!is_copy) return false;
      if (operations_[i].fails) return true;
    }
    return false;
  }

  std::mutex mutex_;
  std::vector<Operation> operations_;
  std::map<void*, std::set<size_t>> held_;
  std::vector<size_t> copies_;
  std::map<uintptr_t, size_t> events_;  // those alive, and the operations that they are
  uintptr_t named_ = 0;
  size_t passed_ = 0;
};

class StreamCopyQueueTest : public testing::Test {
 protected:
  Result<uint64_t> Enqueue(int64_t bytes, const StreamPoint& after = nullptr) {
    return queue().Enqueue(std::vector<CopyRun>{{nullptr, nullptr, bytes}}, after);
  }
  [[nodiscard]] CopyQueue& queue() const { return *queue_; }
  [[nodiscard]] RecordingStream& stream() const { return *stream_; }
  void EndQueue() { queue_.reset(); }
  void* consumer() { return &consumer_; }

 private:
  int consumer_ = 0;
  std::shared_ptr<RecordingStream> stream_ = std::make_shared<RecordingStream>();
  std::unique_ptr<CopyQueue> queue_ = MakeStreamCopyQueue(stream_);
};

TEST_F(StreamCopyQueueTest, ACopyToTheDeviceRunsBesideWhatDoesNotUseItsTarget) {
  const size_t last_use = stream().Work(consumer());
  const StreamPoint free = queue().PointOf(consumer()).value();
  const size_t unrelated = stream().Work(consumer());
  const uint64_t ticket = Enqueue(8, free).value();
  const size_t copy = stream().copies().at(0);
  const size_t meanwhile = stream().Work(consumer());
  ASSERT_TRUE(queue().OrderAfter(ticket, consumer()).ok());
  const size_t use = stream().Work(consumer());

  EXPECT_TRUE(stream().Precedes(last_use, copy));
  EXPECT_FALSE(stream().Precedes(unrelated, copy)) << "the copy waits for work that it has nothing to do with";
  EXPECT_FALSE(stream().Precedes(copy, meanwhile)) << "the consumer waits before it uses the copy";
  EXPECT_TRUE(stream().Precedes(copy, use));
}

TEST_F(StreamCopyQueueTest, ACopyIntoFreshMemoryWaitsForNothing) {
  const size_t before = stream().Work(consumer());
  ASSERT_TRUE(Enqueue(8).ok());
  EXPECT_FALSE(stream().Precedes(before, stream().copies().at(0)));
}

TEST_F(StreamCopyQueueTest, ACopyToTheHostWaitsForItsProducerAndNobodyForIt) {
  const size_t producer = stream().Work(consumer());
  const StreamPoint produced = queue().PointOf(consumer()).value();
  const size_t next = stream().Work(consumer());
  ASSERT_TRUE(Enqueue(8, produced).ok());
  const size_t copy = stream().copies().at(0);
  const size_t after = stream().Work(consumer());
  EXPECT_TRUE(stream().Precedes(producer, copy));
  EXPECT_FALSE(stream().Precedes(next, copy));
  EXPECT_FALSE(stream().Precedes(copy, after));
}

TEST_F(StreamCopyQueueTest, BatchesRunInOrderAfterAPointOfAnyConsumer) {
  int other_consumer = 0;
  const size_t elsewhere = stream().Work(&other_consumer);
  const StreamPoint point = queue().PointOf(&other_consumer).value();
  ASSERT_TRUE(queue().Enqueue(std::vector<CopyRun>{{nullptr, nullptr, 1}, {nullptr, nullptr, 0}}, point).ok());
  const uint64_t second = Enqueue(2).value();
  const auto copies = stream().copies();
  ASSERT_EQ(copies.size(), 2U) << "nothing is copied for no bytes";
  EXPECT_TRUE(stream().Precedes(elsewhere, copies[0]));
  EXPECT_TRUE(stream().Precedes(copies[0], copies[1]));
  ASSERT_TRUE(queue().OrderAfter(second, consumer()).ok());
  EXPECT_TRUE(stream().Precedes(copies[0], stream().Work(consumer())));
}

TEST_F(StreamCopyQueueTest, AConsumerNeedNotWaitForWhatHasPassed) {
  const uint64_t ticket = Enqueue(1).value();
  ASSERT_TRUE(queue().Wait(ticket).ok());
  EXPECT_EQ(stream().events(), 0U);
  EXPECT_TRUE(queue().OrderAfter(ticket, consumer()).ok());
  EXPECT_FALSE(stream().Precedes(stream().copies().at(0), stream().Work(consumer())));
}

TEST_F(StreamCopyQueueTest, WhatHasPassedIsForgotten) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Enqueue(1).ok());
  EXPECT_FALSE(queue().Passed(1));
  EXPECT_EQ(stream().events(), 3U);
  ASSERT_TRUE(queue().Wait(2).ok());
  EXPECT_TRUE(queue().Passed(1));
  EXPECT_TRUE(queue().Passed(2));
  EXPECT_FALSE(queue().Passed(3));
  EXPECT_EQ(stream().events(), 1U);
  stream().PassAll();
  EXPECT_TRUE(queue().Passed(3));
  EXPECT_EQ(stream().events(), 0U);
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
  stream().copies_left = 1;
  EXPECT_EQ(queue().Enqueue(two, nullptr).status().message(), "no copy");
  EXPECT_EQ(stream().synchronized, 1) << "the first of the two may have begun";
  stream().copies_left = 100;
  stream().records_left = 0;
  EXPECT_EQ(queue().Enqueue(two, nullptr).status().message(), "no event");
  EXPECT_EQ(stream().synchronized, 2);
  EXPECT_EQ(queue().PointOf(consumer()).status().message(), "no event");
  stream().records_left = 100;
  EXPECT_EQ(Enqueue(1).value(), 1U);
  EXPECT_TRUE(queue().Wait(1).ok());
}

TEST_F(StreamCopyQueueTest, PointsOutliveTheirQueue) {
  StreamPoint point = queue().PointOf(consumer()).value();
  ASSERT_TRUE(Enqueue(1, point).ok());
  EndQueue();
  EXPECT_EQ(stream().synchronized, 1) << "a queue ends after its work";
  EXPECT_EQ(stream().events(), 1U);
  point.reset();
  EXPECT_EQ(stream().events(), 0U);
}

TEST_F(StreamCopyQueueTest, NobodyIsHeldUpByAnothersWait) {
  ASSERT_TRUE(Enqueue(1).ok());
  ASSERT_TRUE(queue().Wait(1).ok());
  const uint64_t slow = Enqueue(1).value();
  std::promise<void> others_are_through;
  std::atomic<bool> in_time = false;
  std::once_flag once;
  std::thread others;
  stream().while_waiting = [&] {
    std::call_once(once, [&] {
      others = std::thread([&] {
        EXPECT_TRUE(queue().Wait(1).ok());
        EXPECT_FALSE(queue().Passed(slow));
        const auto point = queue().PointOf(consumer());
        EXPECT_TRUE(point.ok());
        const auto next = Enqueue(2, *point);
        EXPECT_TRUE(next.ok());
        EXPECT_TRUE(queue().OrderAfter(*next, consumer()).ok());
        stream().PassAll();
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
  EXPECT_EQ(stream().events(), 0U);
}

}  // namespace
}  // namespace everlong::kv
