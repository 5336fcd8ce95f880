// Who waits for which commit: blocks of several threads share one.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <semaphore>
#include <span>
#include <thread>
#include <vector>

#include "../../cpp/store/append_queue.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

constexpr int kThreads = 8;

// A queue whose commits stop until the test lets them go, and note how many blocks each has stored.
class HeldQueue {
 public:
  HeldQueue() : queue_(int64_t{1} << 20, 1, [this](auto blocks, Status& failure) { return Commit(blocks, failure); }) {}
  ~HeldQueue() { go_.release(kThreads); }

  AppendQueue& queue() { return queue_; }
  // Let the commit that is under way go on, or the next one.
  void LetGo() { go_.release(); }
  void WaitForCommit() { under_way_.acquire(); }
  void FailFromNowOn() { fails_ = true; }
  std::vector<size_t> stored() {
    const std::scoped_lock lock(mutex_);
    return stored_;
  }
  // Submit a block from each of several threads, wait for it there, and let commits go once all are submitted. Return
  // the threads' answers.
  std::vector<Result<int64_t>> WaitInThreads() {
    const TestBlock block(3, 5);
    const int64_t behind = queue_.next_id() + kThreads;
    std::vector<Result<int64_t>> answers(kThreads, int64_t{0});
    std::vector<std::thread> threads;
    for (Result<int64_t>& answer : answers) {
      threads.emplace_back([this, &block, &answer] {
        EXPECT_OK(queue_.Submit(block.Draft()).status());
        answer = queue_.WaitForSubmitted();
      });
    }
    while (queue_.next_id() < behind) std::this_thread::yield();
    go_.release(2);
    for (std::thread& thread : threads) thread.join();
    return answers;
  }

 private:
  size_t Commit(std::span<const OwnedDraft> blocks, Status& failure) {
    under_way_.release();
    go_.acquire();
    if (fails_) {
      failure = IoError("the disk is full");
      return 0;
    }
    const std::scoped_lock lock(mutex_);
    stored_.push_back(blocks.size());
    return blocks.size();
  }

  std::mutex mutex_;
  std::vector<size_t> stored_;
  std::counting_semaphore<> under_way_{0};
  std::counting_semaphore<> go_{0};
  std::atomic<bool> fails_ = false;
  AppendQueue queue_;  // its thread uses the rest
};

TEST(StoreAppendQueue, BlocksOfThreadsThatWaitShareACommit) {
  HeldQueue held;
  const TestBlock block(1, 5);
  ASSERT_OK(held.queue().Submit(block.Draft()).status());
  held.WaitForCommit();  // of that block alone
  for (const Result<int64_t>& answer : held.WaitInThreads()) {
    ASSERT_OK(answer.status());
    EXPECT_GE(*answer, 3);  // behind its own block
    EXPECT_LE(*answer, kThreads + 2);
  }
  EXPECT_EQ(held.stored(), (std::vector<size_t>{1, kThreads}));
}

TEST(StoreAppendQueue, WhoWaitsIsNotKeptByBlocksThatComeLater) {
  HeldQueue held;
  const TestBlock block(1, 5);
  ASSERT_OK(held.queue().Submit(block.Draft()).status());
  held.WaitForCommit();
  std::atomic<bool> done = false;
  std::thread goes_on([&] {  // until the wait is over there are always blocks behind it
    while (!done) {
      EXPECT_OK(held.queue().Submit(block.Draft()).status());
      held.LetGo();
    }
  });
  EXPECT_OK(held.queue().WaitForSubmitted().status());
  done = true;
  goes_on.join();
}

TEST(StoreAppendQueue, EveryThreadThatWaitedHearsOfALoss) {
  HeldQueue held;
  const TestBlock block(1, 5);
  ASSERT_OK(held.queue().Submit(block.Draft()).status());
  held.WaitForCommit();
  held.FailFromNowOn();
  for (const Result<int64_t>& answer : held.WaitInThreads()) EXPECT_EQ(answer.status().code(), StatusCode::kIoError);
  EXPECT_EQ(held.queue().WaitForSubmitted().status().code(), StatusCode::kIoError) << "no flush has reported it";
  std::vector<int64_t> lost;
  EXPECT_EQ(held.queue().Flush(&lost).code(), StatusCode::kIoError);
  EXPECT_EQ(lost.size(), size_t{kThreads + 1});
  EXPECT_OK(held.queue().WaitForSubmitted().status());
}

}  // namespace
}  // namespace everlong::store
