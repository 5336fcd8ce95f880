// A stream of its own for copies between host and device, beside the streams that compute, and pinned buffers for them.
// Streams and events are handles of the runtime. Every call names its device and leaves the caller's current device as
// it is. The callers order the work of streams (everlong/kv/stream_runtime.h).
#pragma once

#include <cstdint>

#include "launch.h"

namespace everlong::hip {

LaunchStatus CreateSideStream(int32_t device, void** stream);
void DestroySideStream(int32_t device, void* stream);  // after its work
void SynchronizeStream(int32_t device, void* stream);

LaunchStatus AllocatePinned(int32_t device, int64_t bytes, void** buffer);
void FreePinned(int32_t device, void* buffer);

// Enqueue one copy between host and device, of `bytes` >= 1.
LaunchStatus CopyOnStream(int32_t device, void* stream, void* to, const void* from, int64_t bytes);

// Record an event that passes after what has been enqueued on the stream.
LaunchStatus RecordEvent(int32_t device, void* stream, void** event);
// Make later work on the stream wait for the event.
LaunchStatus HoldBack(int32_t device, void* stream, void* event);
LaunchStatus HasPassed(int32_t device, void* event, bool* passed);
LaunchStatus WaitForEvent(int32_t device, void* event);
void DestroyEvent(int32_t device, void* event);

}  // namespace everlong::hip
