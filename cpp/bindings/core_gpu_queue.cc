#include "core_gpu_queue.h"

#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../../hip/side_stream.h"
#include "core_gpu_error.h"

namespace everlong::bindings {
namespace {

class GpuCopyQueue : public kv::CopyQueue {
 public:
  GpuCopyQueue(int32_t device, void* stream) : device_(device), stream_(stream) {}
  ~GpuCopyQueue() override {
    hip::DestroySideStream(device_, stream_);
    for (const Batch& batch : batches_) hip::DestroyEvent(device_, batch.done);
  }

  Result<std::byte*> AllocateHost(int64_t bytes) override {
    void* buffer = nullptr;
    const hip::LaunchStatus status = hip::AllocatePinned(device_, bytes, &buffer);
    if (status == 0) return static_cast<std::byte*>(buffer);
    return CapacityError(GpuError(device_, "pinned memory", status).message() + " (" + std::to_string(bytes) +
                         " bytes)");
  }
  void FreeHost(std::byte* buffer) override { hip::FreePinned(device_, buffer); }

  Result<uint64_t> Enqueue(std::span<const kv::CopyRun> batch, void* consumer) override {
    std::vector<hip::StreamCopy> copies;
    copies.reserve(batch.size());
    for (const kv::CopyRun& run : batch) copies.push_back({run.to, run.from, run.bytes});
    const std::lock_guard lock(mutex_);  // events in the order of tickets
    void* done = nullptr;
    const hip::LaunchStatus status =
        hip::CopyBeside(device_, stream_, consumer, copies.data(), static_cast<int64_t>(copies.size()), &done);
    if (status != 0) return GpuError(device_, "copy", status);
    batches_.push_back({++enqueued_, done});
    return enqueued_;
  }

  // An event is waited for under the lock, so that nobody destroys it meanwhile.
  Status Wait(uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    Status first;
    while (!batches_.empty() && batches_.front().ticket <= ticket) {
      const hip::LaunchStatus status = hip::WaitForEvent(device_, batches_.front().done);
      if (status != 0 && first.ok()) first = GpuError(device_, "copy", status);
      DestroyFront();
    }
    return first;
  }

  // What has passed is forgotten here too: who only asks, as for copies to a device, never waits.
  bool Passed(uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    while (!batches_.empty() && batches_.front().ticket <= ticket) {
      bool passed = true;
      // A failed one is not done: Wait brings the error to light.
      if (hip::HasPassed(device_, batches_.front().done, &passed) != 0 || !passed) return false;
      DestroyFront();
    }
    return true;
  }

 private:
  struct Batch {
    uint64_t ticket = 0;
    void* done = nullptr;  // event
  };

  void DestroyFront() {
    hip::DestroyEvent(device_, batches_.front().done);
    batches_.pop_front();
  }

  const int32_t device_;
  void* const stream_;
  std::mutex mutex_;
  std::deque<Batch> batches_;  // neither waited for nor found to have passed
  uint64_t enqueued_ = 0;
};

}  // namespace

Result<std::unique_ptr<kv::CopyQueue>> MakeGpuCopyQueue(int32_t device) {
  void* stream = nullptr;
  const hip::LaunchStatus status = hip::CreateSideStream(device, &stream);
  if (status != 0) return GpuError(device, "side stream", status);
  return std::unique_ptr<kv::CopyQueue>(std::make_unique<GpuCopyQueue>(device, stream));
}

}  // namespace everlong::bindings
