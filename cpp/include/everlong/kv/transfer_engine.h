// Payload bytes between host and device: staging buffers out of a bounded pool, filled by the store or by the device,
// and handed over without waiting. Batches of pages a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::kv {

class StagingPool;

// A host buffer of a pool; goes back to it with its last owner. The engine is one of them until a transfer is done.
class StagingBuffer {
 public:
  StagingBuffer(std::shared_ptr<StagingPool> pool, std::byte* data, int64_t capacity, int64_t bytes);
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;
  ~StagingBuffer();

  // Uninitialised when acquired. Not to be touched from a hand-over to the end of its transfer.
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

// Names a batch that was handed over.
struct Transfer {
  bool to_device = true;
  uint64_t ticket = 0;
};

// Thread-safe. Buffers may outlive it.
class TransferEngine {
 public:
  // Each direction has a queue of its own, so that neither waits for the other; one queue may serve both. `pool_bytes`
  // bounds all staging buffers.
  TransferEngine(std::shared_ptr<CopyQueue> to_device, std::shared_ptr<CopyQueue> to_host, int64_t pool_bytes);
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;
  ~TransferEngine();  // waits for all transfers

  // A buffer of `bytes` >= 0. When the pool is used up, waits until transfers give their buffers back (back-pressure).
  // kCapacity when `bytes` is over the pool, or the rest of it is held by buffers that nobody has handed over: then
  // waiting would not end. The error of a failed transfer that was waited for.
  Result<std::shared_ptr<StagingBuffer>> Acquire(int64_t bytes);

  // The same without waiting: null when what is held leaves no room now, or the pool never has so much. With
  // `keep_free` >= 0 also when less than that would be left for others: for buffers that are held for long.
  Result<std::shared_ptr<StagingBuffer>> TryAcquire(int64_t bytes, int64_t keep_free = 0);

  // What has been enqueued on the consumer so far (CopyQueue::PointOf).
  Result<StreamPoint> PointOf(void* consumer);

  // Copies segments of the buffer to the device, or from the device into the buffer, and returns without waiting. The
  // copy begins after `after` and the transfers before it in its direction; nothing waits for it but whom OrderAfter
  // and Wait name (CopyQueue::Enqueue). To the device, `after` is the last use of the targets; to the host, what wrote
  // the sources. The caller keeps the device's buffers until the copy is done, or gives them back in the order of a
  // stream that OrderAfter named. kInvalidArgument when a segment leaves the buffer.
  Result<Transfer> ToDevice(std::shared_ptr<const StagingBuffer> buffer, std::span<const TransferSegment> segments,
                            const StreamPoint& after);
  Result<Transfer> ToHost(std::shared_ptr<const StagingBuffer> buffer, std::span<const TransferSegment> segments,
                          const StreamPoint& after);

  // What is enqueued on the consumer from now on begins after the transfer (CopyQueue::OrderAfter).
  Status OrderAfter(const Transfer& transfer, void* consumer);
  // Until the transfer is done. Its own error alone, however often it is asked.
  Status Wait(const Transfer& transfer);

 private:
  class Lane;

  Lane& LaneOf(const Transfer& transfer);

  std::shared_ptr<StagingPool> pool_;
  std::unique_ptr<Lane> to_device_;
  std::unique_ptr<Lane> to_host_;
};

}  // namespace everlong::kv
