// Where copies between host and device run: a side stream of a GPU, or a worker thread where the device is the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "everlong/base/status.h"

namespace everlong::kv {

struct CopyRun {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
};

// Copies in order, one batch after the other, beside what the host and the consumer do. Thread-safe.
class CopyQueue {
 public:
  CopyQueue() = default;
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  virtual ~CopyQueue() = default;  // after all that was enqueued is done

  // A host buffer that the device reads and writes itself (pinned where there is a GPU). kCapacity when there is none.
  virtual Result<std::byte*> AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(std::byte* buffer) = 0;

  // Enqueues a batch of copies and returns its ticket; tickets grow. `consumer` is the GPU stream on which the device's
  // side of the copies is used: the batch begins after all that was enqueued there before, and what is enqueued there
  // afterwards begins after the batch. So a device buffer may come from, and be given back to, an allocator that works
  // in the order of that stream (torch's). A worker thread knows no streams: there Wait alone orders.
  virtual Result<uint64_t> Enqueue(std::span<const CopyRun> batch, void* consumer) = 0;

  // Blocks until the batch is done. kIoError with the device's reason when it failed.
  virtual Status Wait(uint64_t ticket) = 0;
  // Whether Wait would return at once.
  virtual bool Passed(uint64_t ticket) = 0;
};

// Copies on one thread of its own, from and to RAM; destroyed by the process that made it alone.
std::shared_ptr<CopyQueue> MakeWorkerCopyQueue();

}  // namespace everlong::kv
