// The types that the calls that enqueue kernels share.
#pragma once

namespace everlong::hip {

// The runtime's error code of a launch; 0 is success. Streams are a hipStream_t or cudaStream_t.
using LaunchStatus = int;

// Return the meaning of a runtime's code, e.g. "invalid device function".
const char* LaunchError(LaunchStatus status);

}  // namespace everlong::hip
