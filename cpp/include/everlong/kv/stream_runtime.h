// A side stream of a GPU, and the few calls of its runtime that a CopyQueue is made of; the queue over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "everlong/base/status.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::kv {

// Streams and events are handles of the runtime, a hipStream_t or cudaStream_t and its event. Errors are kIoError with
// the runtime's reason. Thread-safe, as the runtimes are; no call but WaitFor and Synchronize waits for the device.
class SideStream {
 public:
  using Event = void*;

  SideStream() = default;
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  virtual ~SideStream() = default;  // after its work

  [[nodiscard]] virtual void* handle() const = 0;

  // Pinned. kCapacity when there is none.
  virtual Result<std::byte*> AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(std::byte* buffer) = 0;

  // Enqueues one copy on this stream.
  virtual Status Copy(const CopyRun& run) = 0;
  // An event that passes after what has been enqueued on `stream`: this one or a consumer's. The caller's to destroy.
  virtual Result<Event> Record(void* stream) = 0;
  // What is enqueued on `stream` from now on waits for the event.
  virtual Status HoldBack(void* stream, Event event) = 0;

  // The host waits; an error is that of what the event stands behind.
  virtual Status WaitFor(Event event) = 0;
  virtual Result<bool> HasPassed(Event event) = 0;
  virtual void Destroy(Event event) = 0;
  virtual void Synchronize() = 0;  // with this stream
};

std::unique_ptr<CopyQueue> MakeStreamCopyQueue(std::shared_ptr<SideStream> stream);

}  // namespace everlong::kv
