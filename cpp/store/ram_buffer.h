// RAM of a fixed size, of any content at first. A large buffer is a mapping of its own. It has huge pages where the
// system has them, and goes back to the system as soon as it is destroyed.
#pragma once

#include <cstddef>
#include <span>

namespace everlong::store {

class RamBuffer {
 public:
  // It throws std::bad_alloc where there is no room.
  explicit RamBuffer(size_t size);
  ~RamBuffer();
  RamBuffer(const RamBuffer&) = delete;
  RamBuffer& operator=(const RamBuffer&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() { return {data_, size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;  // else it is on the heap
};

}  // namespace everlong::store
