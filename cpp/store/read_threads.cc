#include "read_threads.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

namespace everlong::store {
namespace {

constexpr int64_t kBytesPerThread = int64_t{2} << 20;
constexpr int64_t kMostRamThreads = 8;

}  // namespace

size_t RamHelpers(int64_t bytes) {
  static const auto kProcessors = int64_t{std::thread::hardware_concurrency()};
  return static_cast<size_t>(
      std::max<int64_t>(0, std::min({bytes / kBytesPerThread, kProcessors, kMostRamThreads}) - 1));
}

bool ReadJob::RunNext() {
  const size_t i = next_.fetch_add(1);
  if (i >= size_) return false;
  Run(i);
  const std::scoped_lock lock(mutex_);
  if (++done_ == size_) finished_.notify_all();
  return true;
}

void ReadJob::Finish() {
  while (RunNext()) {
  }
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return done_ == size_; });
}

void ReadJob::GiveUp() {
  const size_t begun = std::min(next_.exchange(size_), size_);
  std::unique_lock lock(mutex_);
  done_ += size_ - begun;
  finished_.wait(lock, [this] { return done_ == size_; });
}

ReadThreads::~ReadThreads() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<ReadThreads> ReadThreads::OfProcess() {
  static std::mutex mutex;
  static std::weak_ptr<ReadThreads> shared;
  static pid_t process = 0;  // a fork has none of its parent's threads
  const std::scoped_lock lock(mutex);
  std::shared_ptr<ReadThreads> threads = shared.lock();
  if (threads != nullptr && process == ::getpid()) return threads;
  threads = std::make_shared<ReadThreads>();
  shared = threads;
  process = ::getpid();
  return threads;
}

void ReadThreads::Start(std::shared_ptr<ReadJob> job, size_t most) {
  const std::scoped_lock lock(mutex_);
  try {
    while (threads_.size() < most) threads_.emplace_back([this] { Work(); });
  } catch (const std::exception&) {  // the system has no further thread, or no memory for one
    // The started threads are enough. Without any, the thread that waits for the job does all of it.
    if (threads_.empty()) return;
  }
  const size_t wanted = std::min(job->size(), most);
  try {
    jobs_.push_back(std::move(job));
  } catch (const std::bad_alloc&) {
    return;  // the thread that waits for it does all of it
  }
  if (wanted >= kReadThreads) {
    wake_.notify_all();
  } else {
    for (size_t i = 0; i < wanted; ++i) wake_.notify_one();
  }
}

void ReadThreads::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::shared_ptr<ReadJob> job = jobs_.front();
    lock.unlock();
    const bool ran = job->RunNext();
    lock.lock();
    if (!ran && !jobs_.empty() && jobs_.front() == job) jobs_.pop_front();
  }
}

}  // namespace everlong::store
