// A lock that many share or one has alone, in which a writer waits for those that are there and for nobody else.
// glibc's std::shared_mutex lets a reader in as long as another one is there: readers that overlap keep a writer out
// for good.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace everlong {

// For std::unique_lock and std::shared_lock. Who comes after a writer waits behind it: a thread that shares the lock
// must not ask for it again.
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
  std::mutex turn_;  // held while its owner waits for `mutex_`
  std::shared_mutex mutex_;
};

}  // namespace everlong
