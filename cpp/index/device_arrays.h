// The arrays of a job, one after the other in the memory of a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace everlong::index {

// The place of each array. The device's widest access may begin there.
class DeviceArrays {
 public:
  template <class T>
  int64_t Take(int64_t count) {
    const int64_t at = end_;
    end_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  [[nodiscard]] int64_t end() const { return end_; }

 private:
  static constexpr int64_t kAlignment = 256;
  int64_t end_ = 0;
};

template <class T>
T* ArrayAt(std::byte* memory) {
  return reinterpret_cast<T*>(memory);
}

// Write bytes into a buffer that is to be uploaded.
inline void PutAt(std::span<std::byte> into, int64_t at, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, into.begin() + at);
}

}  // namespace everlong::index
