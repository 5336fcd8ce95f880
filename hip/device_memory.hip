#include <cstddef>
#include <cstdint>

#include "device_memory.h"
#include "vendor.h"

namespace everlong::hip {

OnDevice::OnDevice(int32_t device) {
  if (hipGetDevice(&before_) != hipError_t{}) before_ = device;
  status_ = static_cast<LaunchStatus>(hipSetDevice(device));
}

OnDevice::~OnDevice() { static_cast<void>(hipSetDevice(before_)); }

LaunchStatus AllocateOnDevice(int64_t bytes, void** memory) {
  const hipError_t allocated = hipMalloc(memory, static_cast<size_t>(bytes));
  if (allocated == hipError_t{}) return 0;
  static_cast<void>(hipGetLastError());  // no memory is an answer here; the next launch would take it for its failure
  return static_cast<LaunchStatus>(allocated);
}

void FreeOnDevice(void* memory) { static_cast<void>(hipFree(memory)); }

}  // namespace everlong::hip
