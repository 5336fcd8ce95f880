// Uploads of small host tables to a device through a ring of pinned RAM, so that enqueueing a copy never waits. From
// other RAM the runtimes copy only after all work of the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/stream_runtime.h"

namespace everlong::kv {

// Thread-safe.
class UploadRing {
 public:
  // Make a ring of `bytes` >= 1 of pinned RAM. kCapacity.
  static Result<std::unique_ptr<UploadRing>> Make(std::shared_ptr<StreamRuntime> runtime, int64_t bytes);
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;
  ~UploadRing();  // after its copies

  [[nodiscard]] int64_t bytes() const { return bytes_; }

  // Enqueue a copy of `from` on the stream. `from` has at most bytes() and may change once the call returns. It waits
  // for the device only where the ring is full of copies under way, and then for the oldest. kIoError.
  Status Upload(void* stream, std::byte* to, std::span<const std::byte> from);

 private:
  // A part of the ring with a copy under way.
  struct Part {
    int64_t begin = 0;
    StreamRuntime::Event copied = nullptr;
  };

  UploadRing(std::shared_ptr<StreamRuntime> runtime, std::byte* pinned, int64_t bytes);
  // Call these under the lock.
  [[nodiscard]] bool TryTake(int64_t bytes, int64_t* begin) const;
  Result<int64_t> Take(int64_t bytes);
  void GiveBackOldest();

  const std::shared_ptr<StreamRuntime> runtime_;
  std::byte* const pinned_;
  const int64_t bytes_;
  std::mutex mutex_;
  std::deque<Part> under_way_;  // one behind the other, around the ring
  int64_t end_ = 0;             // of the newest part
};

}  // namespace everlong::kv
