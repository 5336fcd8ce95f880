#include <cstddef>
#include <cstdint>

#include "device_memory.h"
#include "grid.h"
#include "vendor.h"

namespace everlong::hip {

OnDevice::OnDevice(int32_t device) {
  if (hipGetDevice(&before_) != hipError_t{}) before_ = device;
  status_ = static_cast<LaunchStatus>(hipSetDevice(device));
}

OnDevice::~OnDevice() { static_cast<void>(hipSetDevice(before_)); }

LaunchStatus AllocateOnDevice(int64_t bytes, void** memory) {
  return Answered(hipMalloc(memory, static_cast<size_t>(bytes)));
}

void FreeOnDevice(void* memory) { static_cast<void>(hipFree(memory)); }

}  // namespace everlong::hip
