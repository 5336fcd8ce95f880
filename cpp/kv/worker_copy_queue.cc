#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "everlong/base/huge_pages.h"
#include "everlong/base/process.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::kv {
namespace {

constexpr std::align_val_t kPage{4096};

class WorkerCopyQueue : public CopyQueue {
 public:
  WorkerCopyQueue() : worker_([this] { Work(); }) {}
  ~WorkerCopyQueue() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  Result<std::byte*> AllocateHost(int64_t bytes) override {
    void* buffer = ::operator new(static_cast<size_t>(bytes), kPage, std::nothrow);
    if (buffer == nullptr) return CapacityError("no memory for " + std::to_string(bytes) + " bytes of staging");
    AdviseHugePages(buffer, bytes);
    return static_cast<std::byte*>(buffer);
  }
  void FreeHost(std::byte* buffer) override { ::operator delete(buffer, kPage); }

  Result<StreamPoint> PointOf(void* /*consumer*/) override { return StreamPoint(); }

  Result<uint64_t> Enqueue(std::span<const CopyRun> batch, const StreamPoint& /*after*/) override {
    uint64_t ticket = 0;
    {
      const std::lock_guard lock(mutex_);
      batches_.emplace_back(batch.begin(), batch.end());
      ticket = ++enqueued_;
    }
    changed_.notify_all();
    return ticket;
  }

  Status OrderAfter(uint64_t ticket, void* /*consumer*/) override { return Wait(ticket); }

  Status Wait(uint64_t ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket; });
    return OkStatus();
  }

  bool Passed(uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    return done_ >= ticket;
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !batches_.empty(); });
      if (batches_.empty()) return;
      const std::vector<CopyRun> batch = std::move(batches_.front());
      batches_.pop_front();
      lock.unlock();
      for (const CopyRun& run : batch) {
        if (run.bytes > 0) std::memcpy(run.to, run.from, static_cast<size_t>(run.bytes));
      }
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<CopyRun>> batches_;
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  bool closing_ = false;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace

std::shared_ptr<CopyQueue> MakeWorkerCopyQueue() {
  return OwnedByThisProcess<CopyQueue>(std::make_unique<WorkerCopyQueue>());
}

}  // namespace everlong::kv
