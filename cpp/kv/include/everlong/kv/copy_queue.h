// A queue of copies between host and device: a side stream of a GPU, or a worker thread where the device is the host.
// Ordering other work after a copy is a separate call. So a copy runs beside all work that does not touch its buffers.
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

// A point in a GPU stream: all work that was enqueued there when CopyQueue::PointOf made it. Null: nothing to wait for.
// Every queue of the device can use it. It may outlive the queue that made it.
class StreamEvent;
using StreamPoint = std::shared_ptr<const StreamEvent>;

// Copies run in order, batch after batch, beside the work of the host and the consumer. `consumer` is the GPU stream
// that uses the device's side of the copies. Thread-safe. Only Wait waits for a copy; for a host also OrderAfter.
class CopyQueue {
 public:
  CopyQueue() = default;
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  virtual ~CopyQueue() = default;  // after all enqueued work is done

  // Allocate a host buffer that the device can access: pinned where there is a GPU. kCapacity when there is no memory.
  virtual Result<std::byte*> AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(std::byte* buffer) = 0;

  // Return the point of what has been enqueued on the consumer so far. kIoError with the device's reason. A worker
  // thread has no streams, so its points are null.
  virtual Result<StreamPoint> PointOf(void* consumer) = 0;

  // Enqueue a batch of copies and return its ticket; tickets grow. The batch begins after `after` and after the batches
  // before it, and waits for nothing else. `after` is the work that last wrote its sources or used its targets. Only
  // callers of OrderAfter and Wait wait for the batch. If it fails (kIoError), no part of it is under way.
  virtual Result<uint64_t> Enqueue(std::span<const CopyRun> batch, const StreamPoint& after) = 0;

  // Make later work on the consumer begin after the batch. Where the device is the host, the caller is the consumer and
  // waits. kIoError with the device's reason; of the batch when it is known to have failed.
  virtual Status OrderAfter(uint64_t ticket, void* consumer) = 0;

  // Block until the batch is done; other threads may call the queue meanwhile. kIoError with the device's reason when
  // this batch failed, on every call. Failures of other batches are not reported here.
  virtual Status Wait(uint64_t ticket) = 0;
  // Return whether Wait would return at once.
  virtual bool Passed(uint64_t ticket) = 0;
};

// Make a queue that copies on one thread of its own, from and to RAM. Only the process that made it destroys it.
std::shared_ptr<CopyQueue> MakeWorkerCopyQueue();

}  // namespace everlong::kv
