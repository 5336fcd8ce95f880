// A shared mutex that is fair to writers: a writer waits only for the holders that came before it. glibc's
// std::shared_mutex lets a reader in while another reader holds it, so overlapping readers can starve a writer.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace everlong {

// Use it with std::unique_lock and std::shared_lock. A reader that comes after a writer waits behind it. So a thread
// that holds the lock shared must not lock it again.
class FairSharedMutex {
 public:
  void lock() {
    const std::scoped_lock turn(turn_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }
  void lock_shared() {
    const std::scoped_lock turn(turn_);
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::mutex turn_;  // its holder waits for `mutex_`
  std::shared_mutex mutex_;
};

}  // namespace everlong
