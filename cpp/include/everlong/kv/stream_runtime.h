// The few calls of a GPU's runtime that copies are made of, and the queue of a side stream over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "everlong/base/status.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::kv {

// One device. Streams and events are handles of the runtime, a hipStream_t or cudaStream_t and its event. Errors are
// kIoError with the runtime's reason. Thread-safe, as the runtimes are; no call but WaitFor and Synchronize waits for
// the device.
class StreamRuntime {
 public:
  using Event = void*;

  StreamRuntime() = default;
  StreamRuntime(const StreamRuntime&) = delete;
  StreamRuntime& operator=(const StreamRuntime&) = delete;
  virtual ~StreamRuntime() = default;

  // A stream beside those of others; destroyed after its work.
  virtual Result<void*> CreateStream() = 0;
  virtual void DestroyStream(void* stream) = 0;

  // Pinned, at an address divisible by 256. kCapacity when there is none.
  virtual Result<std::byte*> AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(std::byte* buffer) = 0;

  // Enqueues one copy, its host's side pinned.
  virtual Status Copy(void* stream, const CopyRun& run) = 0;
  // An event that passes after what has been enqueued on the stream. The caller's to destroy.
  virtual Result<Event> Record(void* stream) = 0;
  // What is enqueued on the stream from now on waits for the event.
  virtual Status HoldBack(void* stream, Event event) = 0;

  // The host waits; an error is that of what the event stands behind.
  virtual Status WaitFor(Event event) = 0;
  virtual Result<bool> HasPassed(Event event) = 0;
  virtual void Destroy(Event event) = 0;
  virtual void Synchronize(void* stream) = 0;
};

// Copies on a stream of its own. kIoError when there is none.
Result<std::unique_ptr<CopyQueue>> MakeStreamCopyQueue(std::shared_ptr<StreamRuntime> runtime);

}  // namespace everlong::kv
