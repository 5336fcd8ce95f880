#include <cstddef>
#include <cstdint>

#include "grid.h"
#include "on_device.h"
#include "side_stream.h"
#include "vendor.h"

namespace everlong::hip {

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

void SynchronizeStream(int32_t device, void* stream) {
  const OnDevice current(device);
  static_cast<void>(Answered(hipStreamSynchronize(static_cast<hipStream_t>(stream))));
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

LaunchStatus CopyOnStream(int32_t device, void* stream, void* to, const void* from, int64_t bytes) {
  const OnDevice current(device);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(current.status());
  return Answered(
      hipMemcpyAsync(to, from, static_cast<size_t>(bytes), hipMemcpyDefault, static_cast<hipStream_t>(stream)));
}

LaunchStatus RecordEvent(int32_t device, void* stream, void** event) {
  const OnDevice current(device);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(current.status());
  hipEvent_t created = nullptr;
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Answered(hipEventCreateWithFlags(&created, hipEventDisableTiming)));
  const LaunchStatus recorded = Answered(hipEventRecord(created, static_cast<hipStream_t>(stream)));
  if (recorded != 0) {
    static_cast<void>(hipEventDestroy(created));
    return recorded;
  }
  *event = created;
  return 0;
}

LaunchStatus HoldBack(int32_t device, void* stream, void* event) {
  const OnDevice current(device);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(current.status());
  return Answered(hipStreamWaitEvent(static_cast<hipStream_t>(stream), static_cast<hipEvent_t>(event), 0));
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
