// Threads that wait for the disk, so that many reads are under way at once. A solid-state disk gives its full rate only
// then. A few of them also copy large reads in RAM. They sleep while idle, and leave the processor to torch's threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace everlong::store {

// Pieces of work started together. Run(i) is called once for every i < size(), from any thread, and must not throw.
class ReadJob {
 public:
  explicit ReadJob(size_t size) : size_(size) {}
  virtual ~ReadJob() = default;
  // Run a piece that no thread has begun yet; return false when nothing is left to begin.
  bool RunNext();
  // Help, then wait for the other threads.
  void Finish();
  // Give up what no thread has begun, then wait for the others.
  void GiveUp();
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

inline constexpr size_t kReadThreads = 32;

// Return how many threads besides the caller's work on so many bytes in RAM. It is at most the number of processors,
// and less than what fills the bus. None where waking a thread would cost more than it saves.
size_t RamHelpers(int64_t bytes);

// Thread-safe. The first job that needs threads starts them. The next job tries again those that the system refuses.
// The destructor finishes what was begun.
class ReadThreads {
 public:
  ReadThreads() = default;
  ~ReadThreads();
  // Return the threads that all stores of this process share. They live from the first store to the last.
  static std::shared_ptr<ReadThreads> OfProcess();
  ReadThreads(const ReadThreads&) = delete;
  ReadThreads& operator=(const ReadThreads&) = delete;
  // Start a job with about `most` of them at most.
  void Start(std::shared_ptr<ReadJob> job, size_t most = kReadThreads);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<ReadJob>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Call work(i), which must not throw, once for every i < count, in any order, on this thread and `helpers` others.
template <class Work>
void RunTogether(ReadThreads& threads, size_t helpers, size_t count, const Work& work) {
  class Job final : public ReadJob {
   public:
    Job(size_t count, const Work& work) : ReadJob(count), work_(work) {}

   protected:
    void Run(size_t i) override { work_(i); }

   private:
    const Work& work_;  // the caller's, who waits
  };
  if (helpers == 0 || count < 2) {
    for (size_t i = 0; i < count; ++i) work(i);
    return;
  }
  const auto job = std::make_shared<Job>(count, work);
  threads.Start(job, helpers);
  job->Finish();
}

}  // namespace everlong::store
