// Small copies between host and device on a stream.
#pragma once

#include <cstdint>

#include "launch.h"

namespace everlong::hip {

// `host` need not be pinned and may change as soon as the call returns: the runtime has it by then.
LaunchStatus CopyToDevice(void* device, const void* host, int64_t bytes, void* stream);

// Returns when the bytes are there, hence all that was enqueued on the stream before.
LaunchStatus CopyToHost(void* host, const void* device, int64_t bytes, void* stream);

}  // namespace everlong::hip
