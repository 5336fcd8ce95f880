// A pool of host buffers in pieces of powers of two. They are reused, because allocating pinned RAM takes milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/kv/copy_queue.h"

namespace everlong::kv {

struct StagingPiece {
  std::byte* data = nullptr;
  int64_t capacity = 0;
};

// Thread-safe.
class StagingPool {
 public:
  StagingPool(std::shared_ptr<CopyQueue> allocator, int64_t limit);
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;
  ~StagingPool();

  [[nodiscard]] int64_t limit() const { return limit_; }
  // Return the bytes of pieces in use.
  [[nodiscard]] int64_t taken() const;

  // Take at least `bytes`, at most the limit. Nothing if the pieces in use leave no room for it and `keep_free`.
  Result<std::optional<StagingPiece>> TryTake(int64_t bytes, int64_t keep_free);
  void GiveBack(StagingPiece piece);

 private:
  // Take a piece kept for reuse. Free kept pieces of other sizes until `capacity` more fits.
  std::optional<StagingPiece> TakeKept(int64_t capacity);
  void MakeRoom(int64_t capacity);

  const std::shared_ptr<CopyQueue> allocator_;
  const int64_t limit_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<std::byte*>> kept_;  // by capacity
  int64_t allocated_ = 0;                            // kept and taken
  int64_t taken_ = 0;
};

}  // namespace everlong::kv
