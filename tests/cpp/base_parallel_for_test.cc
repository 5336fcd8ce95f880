#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "everlong/base/parallel_for.h"

namespace everlong {
namespace {

// A host's pool as the contract has it: disjoint parts of at least `grain`, all run when it returns.
void OnThreads(int64_t begin, int64_t end, int64_t grain, const void* context, ParallelBody body) {
  std::vector<std::thread> threads;
  for (int64_t first = begin; first < end; first += grain) {
    threads.emplace_back(body, context, first, std::min(first + grain, end));
  }
  for (std::thread& thread : threads) thread.join();
}

class ParallelForTest : public testing::Test {
 protected:
  void TearDown() override { SetParallelForHook(nullptr); }

  // How often each of [begin, end) was visited.
  static std::vector<int> Visits(int64_t begin, int64_t end, int64_t grain) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(end));
    ParallelFor(begin, end, grain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) ++visits[static_cast<size_t>(i)];
    });
    return {visits.begin(), visits.end()};
  }
};

TEST_F(ParallelForTest, SerialWithoutAHook) {
  std::vector<std::pair<int64_t, int64_t>> parts;
  ParallelFor(3, 10, 2, [&](int64_t first, int64_t last) { parts.emplace_back(first, last); });
  ASSERT_FALSE(parts.empty());
  EXPECT_EQ(parts.front().first, 3);
  EXPECT_EQ(parts.back().second, 10);
  EXPECT_EQ(Visits(3, 10, 2), (std::vector<int>{0, 0, 0, 1, 1, 1, 1, 1, 1, 1}));
}

TEST_F(ParallelForTest, HookRunsEveryPartOnce) {
  SetParallelForHook(OnThreads);
  EXPECT_EQ(Visits(0, 1001, 100), std::vector<int>(1001, 1));
}

TEST_F(ParallelForTest, EmptyRangeCallsNothing) {
  for (const ParallelForHook hook : {ParallelForHook{nullptr}, ParallelForHook{OnThreads}}) {
    SetParallelForHook(hook);
    int calls = 0;
    ParallelFor(5, 5, 1, [&](int64_t, int64_t) { ++calls; });
    ParallelFor(5, 3, 1, [&](int64_t, int64_t) { ++calls; });
    EXPECT_EQ(calls, 0);
  }
}

}  // namespace
}  // namespace everlong
