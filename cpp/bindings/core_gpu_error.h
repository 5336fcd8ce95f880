// A code of the GPU's runtime as a Status. In builds with a GPU only.
#pragma once

#include <cstdint>
#include <string>

#include "../../hip/launch.h"
#include "everlong/base/status.h"

namespace everlong::bindings {

// "cuda:0: copy: invalid argument"
inline Status GpuError(int32_t device, const char* what, hip::LaunchStatus status) {
  return IoError("cuda:" + std::to_string(device) + ": " + what + ": " + hip::LaunchError(status));
}

}  // namespace everlong::bindings
