#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "everlong/base/heap.h"

namespace everlong {
namespace {

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Blocks that the heap holds, too small for a mapping of their own, each followed by one that stays.
TEST(ReturnFreedHeap, GivesBackWhatLiesBetweenThingsThatStay) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "another heap";
#endif
  constexpr size_t kBlock = 100'000;
  constexpr int64_t kBlocks = 1'000;
  std::vector<std::unique_ptr<char[]>> freed;
  std::vector<std::unique_ptr<char[]>> kept;
  for (int64_t i = 0; i < kBlocks; ++i) {
    freed.push_back(std::make_unique<char[]>(kBlock));
    kept.push_back(std::make_unique<char[]>(64));
    std::memset(kept.back().get(), 7, 64);
  }
  freed.clear();
  const int64_t before = ResidentBytes();
  ReturnFreedHeap();
  EXPECT_LT(ResidentBytes(), before - kBlocks * static_cast<int64_t>(kBlock) * 9 / 10);
  for (const auto& one : kept) ASSERT_EQ(one[63], 7);
}

}  // namespace
}  // namespace everlong
