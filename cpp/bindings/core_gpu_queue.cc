#include "core_gpu_queue.h"

#include <string>

#include "../../hip/side_stream.h"
#include "core_gpu_error.h"
#include "everlong/kv/side_stream.h"

namespace everlong::bindings {
namespace {

// The runtime's calls, one by one; what is ordered after what is kv::MakeStreamCopyQueue's.
class GpuSideStream : public kv::SideStream {
 public:
  GpuSideStream(int32_t device, void* stream) : device_(device), stream_(stream) {}
  ~GpuSideStream() override { hip::DestroySideStream(device_, stream_); }

  [[nodiscard]] void* handle() const override { return stream_; }

  Result<std::byte*> AllocateHost(int64_t bytes) override {
    void* buffer = nullptr;
    const hip::LaunchStatus status = hip::AllocatePinned(device_, bytes, &buffer);
    if (status == 0) return static_cast<std::byte*>(buffer);
    return CapacityError(GpuError(device_, "pinned memory", status).message() + " (" + std::to_string(bytes) +
                         " bytes)");
  }
  void FreeHost(std::byte* buffer) override { hip::FreePinned(device_, buffer); }

  Status Copy(const kv::CopyRun& run) override {
    return Answer(hip::CopyOnStream(device_, stream_, run.to, run.from, run.bytes));
  }
  Result<Event> Record(void* stream) override {
    Event event = nullptr;
    EVERLONG_RETURN_IF_ERROR(Answer(hip::RecordEvent(device_, stream, &event)));
    return event;
  }
  Status HoldBack(void* stream, Event event) override { return Answer(hip::HoldBack(device_, stream, event)); }

  Status WaitFor(Event event) override { return Answer(hip::WaitForEvent(device_, event)); }
  Result<bool> HasPassed(Event event) override {
    bool passed = true;
    EVERLONG_RETURN_IF_ERROR(Answer(hip::HasPassed(device_, event, &passed)));
    return passed;
  }
  void Destroy(Event event) override { hip::DestroyEvent(device_, event); }
  void Synchronize() override { hip::SynchronizeStream(device_, stream_); }

 private:
  [[nodiscard]] Status Answer(hip::LaunchStatus status) const {
    return status == 0 ? OkStatus() : GpuError(device_, "copy", status);
  }

  const int32_t device_;
  void* const stream_;
};

}  // namespace

Result<std::unique_ptr<kv::CopyQueue>> MakeGpuCopyQueue(int32_t device) {
  void* stream = nullptr;
  const hip::LaunchStatus status = hip::CreateSideStream(device, &stream);
  if (status != 0) return GpuError(device, "side stream", status);
  return kv::MakeStreamCopyQueue(std::make_shared<GpuSideStream>(device, stream));
}

}  // namespace everlong::bindings
