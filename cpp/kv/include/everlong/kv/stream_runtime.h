// The few GPU runtime calls that copies need, and the copy queue of a side stream that uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "everlong/base/status.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::kv {

// One device. Streams and events are the runtime's handles, hipStream_t or cudaStream_t and events. Errors are kIoError
// with the runtime's reason. Thread-safe, as the runtimes are. Only WaitFor and Synchronize wait.
class StreamRuntime {
 public:
  using Event = void*;

  StreamRuntime() = default;
  StreamRuntime(const StreamRuntime&) = delete;
  StreamRuntime& operator=(const StreamRuntime&) = delete;
  virtual ~StreamRuntime() = default;

  // Create a stream of its own. It is destroyed after its work.
  virtual Result<void*> CreateStream() = 0;
  virtual void DestroyStream(void* stream) = 0;

  // Allocate pinned memory at an address divisible by 256. kCapacity when there is none.
  virtual Result<std::byte*> AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(std::byte* buffer) = 0;

  // Enqueue one copy. Its host side is pinned.
  virtual Status Copy(void* stream, const CopyRun& run) = 0;
  // Return an event that passes after what has been enqueued on the stream. The caller destroys it.
  virtual Result<Event> Record(void* stream) = 0;
  // Make later work on the stream wait for the event.
  virtual Status HoldBack(void* stream, Event event) = 0;

  // Make the host wait. An error is that of the work before the event.
  virtual Status WaitFor(Event event) = 0;
  virtual Result<bool> HasPassed(Event event) = 0;
  virtual void Destroy(Event event) = 0;
  virtual void Synchronize(void* stream) = 0;
};

// Make a queue that copies on a stream of its own. kIoError when there is none.
Result<std::unique_ptr<CopyQueue>> MakeStreamCopyQueue(std::shared_ptr<StreamRuntime> runtime);

}  // namespace everlong::kv
