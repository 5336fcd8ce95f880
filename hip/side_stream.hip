#include <cstddef>
#include <cstdint>

#include "grid.h"
#include "on_device.h"
#include "side_stream.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

// An event that says how far a stream is.
class Event {
 public:
  Event() : status_(Answered(hipEventCreateWithFlags(&event_, hipEventDisableTiming))) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) static_cast<void>(hipEventDestroy(event_));
  }

  LaunchStatus Record(hipStream_t stream) { return status_ != 0 ? status_ : Answered(hipEventRecord(event_, stream)); }
  LaunchStatus HoldBack(hipStream_t stream) const { return Answered(hipStreamWaitEvent(stream, event_, 0)); }
  hipEvent_t Release() {
    const hipEvent_t event = event_;
    event_ = nullptr;
    return event;
  }

 private:
  hipEvent_t event_ = nullptr;
  LaunchStatus status_;
};

LaunchStatus EnqueueCopies(hipStream_t side, hipStream_t consumer, const StreamCopy* copies, int64_t count,
                           Event* done) {
  Event ready;
  EVERLONG_RETURN_IF_NOT_LAUNCHED(ready.Record(consumer));
  EVERLONG_RETURN_IF_NOT_LAUNCHED(ready.HoldBack(side));
  for (const StreamCopy* copy = copies; copy != copies + count; ++copy) {
    if (copy->bytes == 0) continue;
    EVERLONG_RETURN_IF_NOT_LAUNCHED(
        Answered(hipMemcpyAsync(copy->to, copy->from, static_cast<size_t>(copy->bytes), hipMemcpyDefault, side)));
  }
  EVERLONG_RETURN_IF_NOT_LAUNCHED(done->Record(side));
  return done->HoldBack(consumer);
}

}  // namespace

LaunchStatus CreateSideStream(int32_t device, void** stream) {
  const OnDevice current(device);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(current.status());
  hipStream_t created = nullptr;
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Answered(hipStreamCreateWithFlags(&created, hipStreamNonBlocking)));
  *stream = created;
  return 0;
}

void DestroySideStream(int32_t device, void* stream) {
  const OnDevice current(device);
  const auto side = static_cast<hipStream_t>(stream);
  static_cast<void>(hipStreamSynchronize(side));
  static_cast<void>(hipStreamDestroy(side));
}

LaunchStatus AllocatePinned(int32_t device, int64_t bytes, void** buffer) {
  const OnDevice current(device);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(current.status());
  return Answered(hipHostMalloc(buffer, static_cast<size_t>(bytes), hipHostMallocDefault));
}

void FreePinned(int32_t device, void* buffer) {
  const OnDevice current(device);
  static_cast<void>(hipHostFree(buffer));
}

LaunchStatus CopyBeside(int32_t device, void* side, void* consumer, const StreamCopy* copies, int64_t count,
                        void** done) {
  const OnDevice current(device);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(current.status());
  Event event;
  const auto on = static_cast<hipStream_t>(side);
  const LaunchStatus status = EnqueueCopies(on, static_cast<hipStream_t>(consumer), copies, count, &event);
  if (status != 0) {
    static_cast<void>(hipStreamSynchronize(on));
    return status;
  }
  *done = event.Release();
  return 0;
}

LaunchStatus HasPassed(int32_t device, void* event, bool* passed) {
  const OnDevice current(device);
  const hipError_t answer = hipEventQuery(static_cast<hipEvent_t>(event));
  *passed = answer != hipErrorNotReady;
  const LaunchStatus status = Answered(answer);
  return *passed ? status : 0;
}

LaunchStatus WaitForEvent(int32_t device, void* event) {
  const OnDevice current(device);
  return Answered(hipEventSynchronize(static_cast<hipEvent_t>(event)));
}

void DestroyEvent(int32_t device, void* event) {
  const OnDevice current(device);
  static_cast<void>(hipEventDestroy(static_cast<hipEvent_t>(event)));
}

}  // namespace everlong::hip
