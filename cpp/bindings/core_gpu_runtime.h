// A GPU's runtime as the core's StreamRuntime, for both libraries of the bindings. Only in builds with a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "../../hip/side_stream.h"
#include "core_gpu_error.h"
#include "everlong/base/status.h"
#include "everlong/kv/stream_runtime.h"

namespace everlong::bindings {

// The runtime's calls, one by one. kv orders them.
class GpuStreamRuntime : public kv::StreamRuntime {
 public:
  explicit GpuStreamRuntime(int32_t device) : device_(device) {}

  Result<void*> CreateStream() override {
    void* stream = nullptr;
    const hip::LaunchStatus status = hip::CreateSideStream(device_, &stream);
    if (status != 0) return GpuError(device_, "side stream", status);
    return stream;
  }
  void DestroyStream(void* stream) override { hip::DestroySideStream(device_, stream); }

  Result<std::byte*> AllocateHost(int64_t bytes) override {
    void* buffer = nullptr;
    const hip::LaunchStatus status = hip::AllocatePinned(device_, bytes, &buffer);
    if (status == 0) return static_cast<std::byte*>(buffer);
    return CapacityError(GpuError(device_, "pinned memory", status).message() + " (" + std::to_string(bytes) +
                         " bytes)");
  }
  void FreeHost(std::byte* buffer) override { hip::FreePinned(device_, buffer); }

  Status Copy(void* stream, const kv::CopyRun& run) override {
    return Answer(hip::CopyOnStream(device_, stream, run.to, run.from, run.bytes));
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
  void Synchronize(void* stream) override { hip::SynchronizeStream(device_, stream); }

 private:
  [[nodiscard]] Status Answer(hip::LaunchStatus status) const {
    return status == 0 ? OkStatus() : GpuError(device_, "copy", status);
  }

  const int32_t device_;
};

}  // namespace everlong::bindings
