// Where copies between host and device run: a side stream of a GPU, or a worker thread where the device is the host.
// To enqueue a copy and to order others after it are two things, so that a copy runs beside all that does not touch its
// buffers.
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

// A place in a GPU stream: all that had been enqueued there when CopyQueue::PointOf made it. Null: nothing to wait for.
// Of use to every queue of the device; may outlive the queue that made it.
class StreamEvent;
using StreamPoint = std::shared_ptr<const StreamEvent>;

// Copies in order, one batch after the other, beside what the host and the consumer do. `consumer` is the GPU stream on
// which the device's side of copies is used. Thread-safe; no call but Wait, and where the device is the host
// OrderAfter, waits for a copy.
class CopyQueue {
 public:
  CopyQueue() = default;
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  virtual ~CopyQueue() = default;  // after all that was enqueued is done

  // A host buffer that the device reads and writes itself (pinned where there is a GPU). kCapacity when there is none.
  virtual Result<std::byte*> AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(std::byte* buffer) = 0;

  // What has been enqueued on the consumer so far. kIoError with the device's reason. A worker thread knows no streams:
  // there points are null.
  virtual Result<StreamPoint> PointOf(void* consumer) = 0;

  // Enqueues a batch of copies and returns its ticket; tickets grow. The batch begins after `after` and after the
  // batches before it, and waits for nothing else: `after` is what wrote its sources or used its targets last. Nothing
  // waits for the batch but whom OrderAfter and Wait name. When it fails (kIoError), nothing of it is under way.
  virtual Result<uint64_t> Enqueue(std::span<const CopyRun> batch, const StreamPoint& after) = 0;

  // What is enqueued on the consumer from now on begins after the batch. Where the device is the host its consumer is
  // the caller, who waits. kIoError with the device's reason: of the batch when it is known to have failed.
  virtual Status OrderAfter(uint64_t ticket, void* consumer) = 0;

  // Blocks until the batch is done; others may call the queue meanwhile. kIoError with the device's reason when this
  // batch failed, however often it is asked; those of other batches are their owners'.
  virtual Status Wait(uint64_t ticket) = 0;
  // Whether Wait would return at once.
  virtual bool Passed(uint64_t ticket) = 0;
};

// Copies on one thread of its own, from and to RAM; destroyed by the process that made it alone.
std::shared_ptr<CopyQueue> MakeWorkerCopyQueue();

}  // namespace everlong::kv
