// Threads that wait for the disk, so that many reads are under way at once: a solid-state disk gives its full rate only
// then.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace everlong::store {

// Reads that are started together. Run(i) is called once for every i < size(), from any thread, and
// throws nothing.
class ReadJob {
 public:
  explicit ReadJob(size_t size) : size_(size) {}
  virtual ~ReadJob() = default;
  // Runs what no thread has begun yet; false when nothing is left to begin.
  bool RunNext();
  // Helps, then waits for the others.
  void Finish();
  [[nodiscard]] size_t size() const { return size_; }

 protected:
  virtual void Run(size_t i) = 0;

 private:
  const size_t size_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable finished_;
  size_t done_ = 0;
};

inline constexpr int kReadThreads = 32;

// Thread-safe. The threads are started by the first job; those that the system refuses are tried again by the next.
// The destructor finishes what was begun.
class ReadThreads {
 public:
  ReadThreads() = default;
  ~ReadThreads();
  // Those that all stores of this process share: made with the first one that is there, gone with the last.
  static std::shared_ptr<ReadThreads> OfProcess();
  ReadThreads(const ReadThreads&) = delete;
  ReadThreads& operator=(const ReadThreads&) = delete;
  void Start(std::shared_ptr<ReadJob> job);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<ReadJob>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace everlong::store
