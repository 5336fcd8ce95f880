// A shared mutex that is fair to writers: a writer waits only for the holders that came before it. glibc's
// std::shared_mutex lets a reader in while another reader holds it, so overlapping readers can starve a writer.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

namespace everlong {

// Use it with std::unique_lock and std::shared_lock. A reader that comes after a writer waits behind it. So a thread
// that holds the lock shared must not lock it again.
class FairSharedMutex {
 public:
  void lock() {
    ++waiting_;
    const std::scoped_lock turn(turn_);
    mutex_.lock();
    --waiting_;
  }
  void unlock() { mutex_.unlock(); }
  void lock_shared() {
    ++waiting_;
    const std::scoped_lock turn(turn_);
    mutex_.lock_shared();
    --waiting_;
  }
  void unlock_shared() { mutex_.unlock_shared(); }
  // Return whether a thread waits for the lock. Any thread may ask.
  [[nodiscard]] bool awaited() const { return waiting_ > 0; }

 private:
  std::atomic<int32_t> waiting_ = 0;
  std::mutex turn_;  // its holder waits for `mutex_`
  std::shared_mutex mutex_;
};

}  // namespace everlong
