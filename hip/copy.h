// Small copies between host and device on a stream.
#pragma once

#include <cstdint>

#include "launch.h"

namespace everlong::hip {

// Copy to the device. `host` need not be pinned and may change once the call returns: the runtime has copied it then.
LaunchStatus CopyToDevice(void* device, const void* host, int64_t bytes, void* stream);

// Copy to the host. It returns when the bytes are there, so after all that was enqueued on the stream before.
LaunchStatus CopyToHost(void* host, const void* device, int64_t bytes, void* stream);

}  // namespace everlong::hip
