#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "everlong/base/fair_shared_mutex.h"

namespace everlong {
namespace {

TEST(BaseFairSharedMutexTest, AWriterGetsInBesideReadersWithoutAPause) {
  constexpr int kReaders = 4;
  constexpr int kTurns = 500;  // of each reader, far more than go by until a writer comes that is not kept out
  FairSharedMutex mutex;
  std::atomic<int> shared = 0;
  std::atomic<int> done = 0;
  std::atomic<bool> written = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] {
      for (int turn = 0; turn < kTurns && !written; ++turn) {
        const std::shared_lock reading(mutex);
        ++shared;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        --shared;
      }
      ++done;
    });
  }
  while (shared < kReaders && done == 0) std::this_thread::yield();
  {
    const std::unique_lock writing(mutex);
    EXPECT_EQ(shared, 0);
    EXPECT_EQ(done, 0) << "the readers had to end before the writer got in";
    written = true;
  }
  for (std::thread& reader : readers) reader.join();
}

TEST(BaseFairSharedMutexTest, AHolderSeesThatAnotherWaits) {
  FairSharedMutex mutex;
  std::unique_lock writing(mutex);
  EXPECT_FALSE(mutex.awaited());
  std::thread reader([&mutex] { const std::shared_lock reading(mutex); });
  while (!mutex.awaited()) std::this_thread::yield();
  writing.unlock();
  reader.join();
  EXPECT_FALSE(mutex.awaited());
}

}  // namespace
}  // namespace everlong
