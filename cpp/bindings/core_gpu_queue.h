// A side stream of a GPU as the core's CopyQueue. Only in builds with a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "everlong/base/status.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::bindings {

// Make the queue. kIoError with the runtime's reason.
Result<std::unique_ptr<kv::CopyQueue>> MakeGpuCopyQueue(int32_t device);

}  // namespace everlong::bindings
