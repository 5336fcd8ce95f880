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

// Blocks that the heap holds, too small for a mapping of their own, each followed by one that stays. They are freed.
// What stays is larger, so that it never lies where another was freed, and is hardly touched.
class FreedBlocks {
 public:
  static constexpr int64_t kBlock = 100'000;

  explicit FreedBlocks(int64_t count) {
    std::vector<std::unique_ptr<char[]>> freed;
    for (int64_t i = 0; i < count; ++i) {
      freed.push_back(std::make_unique<char[]>(kBlock));
      kept_.push_back(std::make_unique_for_overwrite<char[]>(kBlock + 4096));
      std::memset(kept_.back().get(), 7, 64);
    }
  }
  ~FreedBlocks() {
    for (const auto& one : kept_) EXPECT_EQ(one[63], 7);
  }
  FreedBlocks(const FreedBlocks&) = delete;
  FreedBlocks& operator=(const FreedBlocks&) = delete;

 private:
  std::vector<std::unique_ptr<char[]>> kept_;
};

class ReturnFreedHeapTest : public testing::Test {
 protected:
  void SetUp() override {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "another heap";
#endif
  }
};

TEST_F(ReturnFreedHeapTest, GivesBackWhatLiesBetweenThingsThatStay) {
  constexpr int64_t kBlocks = 1'000;
  const FreedBlocks blocks(kBlocks);
  const int64_t before = ResidentBytes();
  ReturnFreedHeap();
  EXPECT_LT(ResidentBytes(), before - kBlocks * FreedBlocks::kBlock * 9 / 10);
}

TEST_F(ReturnFreedHeapTest, OnceGrownIsAfterSoMuchAndNotBefore) {
  ReturnFreedHeap();
  ReturnFreedHeapOnceGrown();
  constexpr int64_t kHalf = kGrownHeap / FreedBlocks::kBlock / 2;
  const FreedBlocks half(kHalf);
  const int64_t of_half = ResidentBytes();
  ReturnFreedHeapOnceGrown();
  EXPECT_GT(ResidentBytes(), of_half - kHalf * FreedBlocks::kBlock / 10);
  const FreedBlocks more(3 * kHalf);
  const int64_t before = ResidentBytes();
  ReturnFreedHeapOnceGrown();
  EXPECT_LT(ResidentBytes(), before - 2 * kHalf * FreedBlocks::kBlock * 9 / 10);
}

}  // namespace
}  // namespace everlong
