// A GPU runtime's code as a Status. Only in builds with a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "../../hip/launch.h"
#include "everlong/base/status.h"

namespace everlong::bindings {

// Return e.g. "cuda:0: copy: invalid argument".
inline Status GpuError(int32_t device, const char* what, hip::LaunchStatus status) {
  return IoError("cuda:" + std::to_string(device) + ": " + what + ": " + hip::LaunchError(status));
}

}  // namespace everlong::bindings
