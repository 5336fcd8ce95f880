// Transfers of payload bytes between host and device, through staging buffers of a bounded pool. The store or the
// device fills a buffer, and it is handed over without waiting. One call takes a batch of pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::kv {

class StagingPool;

// A host buffer of a pool. Its last owner returns it. The engine is an owner until a transfer is done.
class StagingBuffer {
 public:
  StagingBuffer(std::shared_ptr<StagingPool> pool, std::byte* data, int64_t capacity, int64_t bytes);
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;
  ~StagingBuffer();

  // Uninitialised when acquired. Do not touch the bytes from a hand-over to the end of its transfer.
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(bytes_)}; }

 private:
  std::shared_ptr<StagingPool> pool_;
  std::byte* data_;
  int64_t capacity_;
  int64_t bytes_;
};

// A part of a buffer and its place on the device.
struct TransferSegment {
  int64_t offset = 0;  // in the buffer
  int64_t bytes = 0;
  std::byte* device = nullptr;
};

// The name of a batch that was handed over.
struct Transfer {
  bool to_device = true;
  uint64_t ticket = 0;
};

// Thread-safe. Buffers may outlive it.
class TransferEngine {
 public:
  // A queue for each direction, so that neither waits for the other, or one for both. `pool_bytes` bounds all buffers.
  TransferEngine(std::shared_ptr<CopyQueue> to_device, std::shared_ptr<CopyQueue> to_host, int64_t pool_bytes);
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;
  ~TransferEngine();  // waits for all transfers

  // Return a buffer of `bytes` >= 0. When the pool is used up, wait until transfers give their buffers back
  // (back-pressure). Return kCapacity when `bytes` is over the pool. Also when buffers that nobody has handed over hold
  // the rest: that wait would not end. Or return the error of a failed transfer that it waited for.
  Result<std::shared_ptr<StagingBuffer>> Acquire(int64_t bytes);

  // Do the same without waiting. Null when the buffers in use leave no room now, or the pool never has so much. With
  // `keep_free` >= 0 also null when less than that would be left for others. Use that for buffers that are held long.
  Result<std::shared_ptr<StagingBuffer>> TryAcquire(int64_t bytes, int64_t keep_free = 0);

  // Return the point of what has been enqueued on the consumer so far (CopyQueue::PointOf).
  Result<StreamPoint> PointOf(void* consumer);

  // Copy segments of the buffer to the device, or from the device into the buffer, without waiting. The copy begins
  // after `after` and the transfers before it in its direction. Only callers of OrderAfter and Wait wait for it
  // (CopyQueue::Enqueue). To the device, `after` is the last use of the targets. To the host, it is the work that wrote
  // the sources. The caller keeps the device's buffers until the copy is done, or frees them in the order of a stream
  // that OrderAfter named. kInvalidArgument when a segment leaves the buffer.
  Result<Transfer> ToDevice(std::shared_ptr<const StagingBuffer> buffer, std::span<const TransferSegment> segments,
                            const StreamPoint& after);
  Result<Transfer> ToHost(std::shared_ptr<const StagingBuffer> buffer, std::span<const TransferSegment> segments,
                          const StreamPoint& after);

  // Make later work on the consumer begin after the transfer (CopyQueue::OrderAfter).
  Status OrderAfter(const Transfer& transfer, void* consumer);
  // Wait until the transfer is done. It returns only the error of this transfer, on every call.
  Status Wait(const Transfer& transfer);

 private:
  class Lane;

  Lane& LaneOf(const Transfer& transfer);

  std::shared_ptr<StagingPool> pool_;
  std::unique_ptr<Lane> to_device_;
  std::unique_ptr<Lane> to_host_;
};

}  // namespace everlong::kv
