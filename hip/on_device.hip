#include <cstddef>
#include <cstdint>

#include "grid.h"
#include "on_device.h"
#include "vendor.h"

namespace everlong::hip {

OnDevice::OnDevice(int32_t device) : device_(device) {
  const bool known = Answered(hipGetDevice(&before_)) == 0;
  if (known && before_ == device) return;
  if (!known) before_ = device;  // then it stays current
  status_ = Answered(hipSetDevice(device));
}

OnDevice::~OnDevice() {
  if (before_ != device_) static_cast<void>(Answered(hipSetDevice(before_)));
}

LaunchStatus AllocateOnDevice(int64_t bytes, void** buffer) {
  return Answered(hipMalloc(buffer, static_cast<size_t>(bytes)));
}

void FreeOnDevice(void* buffer) { static_cast<void>(hipFree(buffer)); }

}  // namespace everlong::hip
