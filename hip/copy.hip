#include <cstddef>
#include <cstdint>

#include "copy.h"
#include "grid.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

// Return whether the current device can read RAM that is not pinned. Then the runtime may not have copied it when the
// copy is enqueued. True where the runtime does not say.
bool ReadsUnpinnedRam() {
  int device = 0;
  int reads = 0;
  if (Answered(hipGetDevice(&device)) != 0) return true;
  return Answered(hipDeviceGetAttribute(&reads, hipDeviceAttributePageableMemoryAccess, device)) != 0 || reads != 0;
}

}  // namespace

LaunchStatus CopyToDevice(void* device, const void* host, int64_t bytes, void* stream) {
  if (bytes == 0) return 0;
  const auto on = static_cast<hipStream_t>(stream);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(
      Answered(hipMemcpyAsync(device, host, static_cast<size_t>(bytes), hipMemcpyHostToDevice, on)));
  return ReadsUnpinnedRam() ? Answered(hipStreamSynchronize(on)) : 0;
}

LaunchStatus CopyToHost(void* host, const void* device, int64_t bytes, void* stream) {
  const auto on = static_cast<hipStream_t>(stream);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(
      Answered(hipMemcpyAsync(host, device, static_cast<size_t>(bytes), hipMemcpyDeviceToHost, on)));
  return Answered(hipStreamSynchronize(on));
}

const char* LaunchError(LaunchStatus status) {
  const auto error = static_cast<hipError_t>(status);
  if (error == hipErrorNoBinaryForGpu)
    return "no kernels for this GPU; this everlong was built for " EVERLONG_BUILT_FOR;
  return hipGetErrorString(error);
}

}  // namespace everlong::hip
