// A GPU as the device of the core's indexes. Only in builds with a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "everlong/base/status.h"
#include "everlong/index/index_device.h"

namespace everlong::bindings {

// Make a device with a stream of its own, in memory of the host program's allocator where there is one
// (base/device_memory.h). kIoError with the runtime's reason.
Result<std::unique_ptr<index::IndexDevice>> MakeGpuIndexDevice(int32_t device);

}  // namespace everlong::bindings
