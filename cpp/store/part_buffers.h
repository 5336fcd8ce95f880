// RAM for the parts of a HostTier, apart from the heap. A heap keeps freed memory between blocks that are in use. Parts
// of a million tokens, of few sizes and beside small blocks, would take a tenth more there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace everlong::store {

// Thread-safe. What was taken keeps its PartBuffers alive.
class PartBuffers : public std::enable_shared_from_this<PartBuffers> {
 public:
  static std::shared_ptr<PartBuffers> Create();
  ~PartBuffers();
  PartBuffers(const PartBuffers&) = delete;
  PartBuffers& operator=(const PartBuffers&) = delete;

  // Return `bytes` >= 1 of any content; null where the system has no room. They come back when the last owner lets go.
  // A few are kept for the next call with that size; the others go back to the system at once.
  std::shared_ptr<std::byte[]> Take(int64_t bytes);
  // Return the bytes that are in use, and those kept for the next call.
  [[nodiscard]] int64_t bytes() const;

 private:
  // Slots of one size.
  struct Slots {
    std::vector<std::byte*> kept;   // with their RAM
    std::vector<std::byte*> empty;  // without it
    size_t made = 0;                // so far: neither list ever holds more
  };
  struct Region {
    std::byte* begin = nullptr;
    int64_t bytes = 0;
  };

  PartBuffers() = default;
  std::byte* Find(int64_t size);
  void GiveBack(std::byte* slot, int64_t size);

  mutable std::mutex mutex_;
  std::unordered_map<int64_t, Slots> slots_;  // by size
  std::vector<Region> regions_;
  int64_t used_ = 0;  // of the last region
  int64_t taken_bytes_ = 0;
  int64_t kept_bytes_ = 0;
};

}  // namespace everlong::store
