#include <cstddef>
#include <cstdint>

#include "copy.h"
#include "vendor.h"

namespace everlong::hip {

LaunchStatus CopyToDevice(void* device, const void* host, int64_t bytes, void* stream) {
  if (bytes == 0) return 0;
  return static_cast<LaunchStatus>(hipMemcpyAsync(device, host, static_cast<size_t>(bytes), hipMemcpyHostToDevice,
                                                  static_cast<hipStream_t>(stream)));
}

LaunchStatus CopyToHost(void* host, const void* device, int64_t bytes, void* stream) {
  const auto on = static_cast<hipStream_t>(stream);
  const hipError_t copied = hipMemcpyAsync(host, device, static_cast<size_t>(bytes), hipMemcpyDeviceToHost, on);
  if (copied != hipError_t{}) return static_cast<LaunchStatus>(copied);
  return static_cast<LaunchStatus>(hipStreamSynchronize(on));
}

const char* LaunchError(LaunchStatus status) { return hipGetErrorString(static_cast<hipError_t>(status)); }

}  // namespace everlong::hip
