#include "everlong/kv/transfer_engine.h"

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "staging_pool.h"

namespace everlong::kv {

StagingBuffer::StagingBuffer(std::shared_ptr<StagingPool> pool, std::byte* data, int64_t capacity, int64_t bytes)
    : pool_(std::move(pool)), data_(data), capacity_(capacity), bytes_(bytes) {}

StagingBuffer::~StagingBuffer() { pool_->GiveBack({data_, capacity_}); }

// One direction: its queue, and the buffers of its transfers until these are done.
class TransferEngine::Lane {
 public:
  explicit Lane(std::shared_ptr<CopyQueue> queue) : queue_(std::move(queue)) {}
  // Waits for all that was handed over. An error that nobody waited for concerns nobody any more.
  ~Lane() {
    while (const std::optional<uint64_t> ticket = Oldest()) static_cast<void>(Wait(*ticket));
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Result<uint64_t> Enqueue(std::shared_ptr<const StagingBuffer> buffer, std::span<const CopyRun> batch,
                           const StreamPoint& after) {
    ReleasePassed();
    const std::lock_guard lock(mutex_);  // tickets and buffers in one order
    EVERLONG_ASSIGN_OR_RETURN(const uint64_t ticket, queue_->Enqueue(batch, after));
    under_way_.push_back({ticket, std::move(buffer)});
    return ticket;
  }

  Result<StreamPoint> PointOf(void* consumer) { return queue_->PointOf(consumer); }
  Status OrderAfter(uint64_t ticket, void* consumer) { return queue_->OrderAfter(ticket, consumer); }

  Status Wait(uint64_t ticket) {
    const Status status = queue_->Wait(ticket);
    Release(ticket);
    return status;
  }

  // Buffers go back under the lock, so a thread that finds nothing under way finds them in the pool.
  void ReleasePassed() {
    const std::lock_guard lock(mutex_);
    while (!under_way_.empty() && queue_->Passed(under_way_.front().ticket)) under_way_.pop_front();
  }

  std::optional<uint64_t> Oldest() {
    const std::lock_guard lock(mutex_);
    if (under_way_.empty()) return std::nullopt;
    return under_way_.front().ticket;
  }

 private:
  struct UnderWay {
    uint64_t ticket = 0;
    std::shared_ptr<const StagingBuffer> buffer;
  };

  // A queue works in order, so what is before `ticket` is done too.
  void Release(uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    while (!under_way_.empty() && under_way_.front().ticket <= ticket) under_way_.pop_front();
  }

  const std::shared_ptr<CopyQueue> queue_;
  std::mutex mutex_;
  std::deque<UnderWay> under_way_;
};

namespace {

Status ValidateSegments(const StagingBuffer& buffer, std::span<const TransferSegment> segments) {
  const auto size = static_cast<int64_t>(buffer.bytes().size());
  for (const TransferSegment& segment : segments) {
    if (segment.offset >= 0 && segment.bytes >= 0 && segment.offset <= size && segment.bytes <= size - segment.offset) {
      continue;
    }
    return InvalidArgumentError("segment: offset " + std::to_string(segment.offset) + ", " +
                                std::to_string(segment.bytes) + " bytes; expected a range of the buffer's " +
                                std::to_string(size) + " bytes");
  }
  return OkStatus();
}

}  // namespace

TransferEngine::TransferEngine(std::shared_ptr<CopyQueue> to_device, std::shared_ptr<CopyQueue> to_host,
                               int64_t pool_bytes)
    : pool_(std::make_shared<StagingPool>(to_device, pool_bytes)),
      to_device_(std::make_unique<Lane>(std::move(to_device))),
      to_host_(std::make_unique<Lane>(std::move(to_host))) {}

TransferEngine::~TransferEngine() = default;

Result<std::shared_ptr<StagingBuffer>> TransferEngine::TryAcquire(int64_t bytes, int64_t keep_free) {
  if (bytes < 0 || keep_free < 0) {
    return InvalidArgumentError("bytes is " + std::to_string(bytes) + ", keep_free " + std::to_string(keep_free) +
                                "; expected at least 0");
  }
  std::shared_ptr<StagingBuffer> buffer;
  if (bytes > pool_->limit()) return buffer;
  to_device_->ReleasePassed();
  to_host_->ReleasePassed();
  EVERLONG_ASSIGN_OR_RETURN(const std::optional<StagingPiece> piece, pool_->TryTake(bytes, keep_free));
  if (piece.has_value()) {
    buffer = std::make_shared<StagingBuffer>(pool_, piece->data, piece->capacity, bytes);
  }
  return buffer;
}

Result<std::shared_ptr<StagingBuffer>> TransferEngine::Acquire(int64_t bytes) {
  if (bytes > pool_->limit()) {
    return CapacityError("staging: " + std::to_string(bytes) + " bytes asked of a pool of " +
                         std::to_string(pool_->limit()));
  }
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(std::shared_ptr<StagingBuffer> buffer, TryAcquire(bytes));
    if (buffer != nullptr) return buffer;
    Lane* lane = to_device_.get();
    std::optional<uint64_t> oldest = lane->Oldest();
    if (!oldest.has_value()) {
      lane = to_host_.get();
      oldest = lane->Oldest();
    }
    if (!oldest.has_value()) {
      // Another thread may have waited for the last transfer since this one was refused.
      EVERLONG_ASSIGN_OR_RETURN(buffer, TryAcquire(bytes));
      if (buffer != nullptr) return buffer;
      return CapacityError("staging: " + std::to_string(bytes) + " bytes asked, " + std::to_string(pool_->taken()) +
                           " of a pool of " + std::to_string(pool_->limit()) + " are held by buffers not handed over");
    }
    EVERLONG_RETURN_IF_ERROR(lane->Wait(*oldest));
  }
}

Result<Transfer> TransferEngine::ToDevice(std::shared_ptr<const StagingBuffer> buffer,
                                          std::span<const TransferSegment> segments, const StreamPoint& after) {
  EVERLONG_RETURN_IF_ERROR(ValidateSegments(*buffer, segments));
  std::vector<CopyRun> batch;
  for (const TransferSegment& segment : segments) {
    batch.push_back({segment.device, buffer->bytes().data() + segment.offset, segment.bytes});
  }
  EVERLONG_ASSIGN_OR_RETURN(const uint64_t ticket, to_device_->Enqueue(std::move(buffer), batch, after));
  return Transfer{true, ticket};
}

Result<Transfer> TransferEngine::ToHost(std::shared_ptr<const StagingBuffer> buffer,
                                        std::span<const TransferSegment> segments, const StreamPoint& after) {
  EVERLONG_RETURN_IF_ERROR(ValidateSegments(*buffer, segments));
  std::vector<CopyRun> batch;
  for (const TransferSegment& segment : segments) {
    batch.push_back({buffer->bytes().data() + segment.offset, segment.device, segment.bytes});
  }
  EVERLONG_ASSIGN_OR_RETURN(const uint64_t ticket, to_host_->Enqueue(std::move(buffer), batch, after));
  return Transfer{false, ticket};
}

Result<StreamPoint> TransferEngine::PointOf(void* consumer) { return to_device_->PointOf(consumer); }

TransferEngine::Lane& TransferEngine::LaneOf(const Transfer& transfer) {
  return transfer.to_device ? *to_device_ : *to_host_;
}

Status TransferEngine::OrderAfter(const Transfer& transfer, void* consumer) {
  return LaneOf(transfer).OrderAfter(transfer.ticket, consumer);
}

Status TransferEngine::Wait(const Transfer& transfer) { return LaneOf(transfer).Wait(transfer.ticket); }

}  // namespace everlong::kv
