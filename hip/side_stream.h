// A stream of its own for copies between host and device, beside the streams that compute, and pinned buffers for them.
// Streams and events are handles of the runtime. Every call names its device and leaves the caller's current one as it
// is.
#pragma once

#include <cstdint>

#include "launch.h"

namespace everlong::hip {

LaunchStatus CreateSideStream(int32_t device, void** stream);
void DestroySideStream(int32_t device, void* stream);  // after its work

LaunchStatus AllocatePinned(int32_t device, int64_t bytes, void** buffer);
void FreePinned(int32_t device, void* buffer);

struct StreamCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

// Enqueues copies on `side`, behind what has been enqueued on `consumer`, and makes what follows there wait for them.
// `done` becomes an event that passes after the copies. When it fails, nothing of it is under way.
LaunchStatus CopyBeside(int32_t device, void* side, void* consumer, const StreamCopy* copies, int64_t count,
                        void** done);

LaunchStatus HasPassed(int32_t device, void* event, bool* passed);
LaunchStatus WaitForEvent(int32_t device, void* event);
void DestroyEvent(int32_t device, void* event);

}  // namespace everlong::hip
