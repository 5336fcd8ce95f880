#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "everlong/base/check.h"
#include "everlong/kv/stream_runtime.h"

namespace everlong::kv {

// An event of the runtime. It is destroyed with its last owner.
class StreamEvent {
 public:
  StreamEvent(std::shared_ptr<StreamRuntime> runtime, StreamRuntime::Event event)
      : runtime_(std::move(runtime)), event_(event) {}
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;
  ~StreamEvent() { runtime_->Destroy(event_); }

  [[nodiscard]] StreamRuntime::Event get() const { return event_; }

 private:
  const std::shared_ptr<StreamRuntime> runtime_;
  const StreamRuntime::Event event_;
};

namespace {

class StreamCopyQueue : public CopyQueue {
 public:
  StreamCopyQueue(std::shared_ptr<StreamRuntime> runtime, void* side) : runtime_(std::move(runtime)), side_(side) {}
  ~StreamCopyQueue() override { runtime_->DestroyStream(side_); }

  Result<std::byte*> AllocateHost(int64_t bytes) override { return runtime_->AllocateHost(bytes); }
  void FreeHost(std::byte* buffer) override { runtime_->FreeHost(buffer); }

  Result<StreamPoint> PointOf(void* consumer) override { return Recorded(consumer); }

  Result<uint64_t> Enqueue(std::span<const CopyRun> batch, const StreamPoint& after) override {
    Result<uint64_t> ticket = TryEnqueue(batch, after);
    if (!ticket.ok()) runtime_->Synchronize(side_);  // waits for those copies of it that were enqueued
    return ticket;
  }

  Status OrderAfter(uint64_t ticket, void* consumer) override {
    StreamPoint done;
    {
      const std::scoped_lock lock(mutex_);
      if (!IsOpen(ticket)) return FailureOf(ticket);
      done = BatchOf(ticket).done;
    }
    return runtime_->HoldBack(consumer, done->get());
  }

  Status Wait(uint64_t ticket) override {
    // Owned here too: another thread may find that the batch has passed, and must not destroy its event.
    StreamPoint done;
    {
      const std::scoped_lock lock(mutex_);
      if (!IsOpen(ticket)) return FailureOf(ticket);
      done = BatchOf(ticket).done;
    }
    Status status = runtime_->WaitFor(done->get());
    const std::scoped_lock lock(mutex_);
    if (!IsOpen(ticket)) return FailureOf(ticket);
    BatchOf(ticket).outcome = status;
    CloseWhatHasPassed();
    return status;
  }

  bool Passed(uint64_t ticket) override {
    const std::scoped_lock lock(mutex_);
    CloseWhatHasPassed();
    return !IsOpen(ticket);
  }

 private:
  struct Batch {
    StreamPoint done;
    std::optional<Status> outcome;
  };

  Result<StreamPoint> Recorded(void* stream) {
    EVERLONG_ASSIGN_OR_RETURN(const StreamRuntime::Event event, runtime_->Record(stream));
    return StreamPoint(std::make_shared<StreamEvent>(runtime_, event));
  }

  Result<uint64_t> TryEnqueue(std::span<const CopyRun> batch, const StreamPoint& after) {
    const std::scoped_lock lock(mutex_);  // events in the order of tickets
    if (after != nullptr) EVERLONG_RETURN_IF_ERROR(runtime_->HoldBack(side_, after->get()));
    for (const CopyRun& run : batch) {
      if (run.bytes > 0) EVERLONG_RETURN_IF_ERROR(runtime_->Copy(side_, run));
    }
    EVERLONG_ASSIGN_OR_RETURN(StreamPoint done, Recorded(side_));
    batches_.push_back({std::move(done), std::nullopt});
    return ++enqueued_;
  }

  // Call these under the lock. A batch is open until its end is known. Batches are closed in order.
  [[nodiscard]] uint64_t FirstOpen() const { return enqueued_ - batches_.size() + 1; }
  [[nodiscard]] bool IsOpen(uint64_t ticket) const {
    EVERLONG_CHECK(ticket <= enqueued_);
    return ticket >= FirstOpen();
  }
  Batch& BatchOf(uint64_t ticket) { return batches_[static_cast<size_t>(ticket - FirstOpen())]; }
  [[nodiscard]] Status FailureOf(uint64_t ticket) const {
    const auto found = failures_.find(ticket);
    return found == failures_.end() ? OkStatus() : found->second;
  }

  void CloseWhatHasPassed() {
    while (!batches_.empty()) {
      Batch& oldest = batches_.front();
      if (!oldest.outcome.has_value()) {
        const Result<bool> passed = runtime_->HasPassed(oldest.done->get());
        if (passed.ok() && !*passed) return;
        oldest.outcome = passed.ok() ? OkStatus() : passed.status();
      }
      if (!oldest.outcome->ok()) failures_.emplace(FirstOpen(), *oldest.outcome);
      batches_.pop_front();
    }
  }

  const std::shared_ptr<StreamRuntime> runtime_;
  void* const side_;
  std::mutex mutex_;
  std::deque<Batch> batches_;
  uint64_t enqueued_ = 0;
  // Kept for their owners. A device with a failed copy takes no more of them, so these are few.
  std::map<uint64_t, Status> failures_;
};

}  // namespace

Result<std::unique_ptr<CopyQueue>> MakeStreamCopyQueue(std::shared_ptr<StreamRuntime> runtime) {
  EVERLONG_ASSIGN_OR_RETURN(void* const side, runtime->CreateStream());
  return std::unique_ptr<CopyQueue>(std::make_unique<StreamCopyQueue>(std::move(runtime), side));
}

}  // namespace everlong::kv
