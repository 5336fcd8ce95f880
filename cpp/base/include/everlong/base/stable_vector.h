// A vector that grows at its end and never moves its elements.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "everlong/base/check.h"

namespace everlong {

// One thread adds and changes elements. Other threads may read, at the same time, elements that this thread has told
// them of and does not change. Each chunk is as long as all chunks before it, so growing never copies.
template <class T>
class StableVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  StableVector() = default;
  StableVector(StableVector&& other) noexcept : chunks_(std::move(other.chunks_)), size_(other.size_.exchange(0)) {}
  StableVector& operator=(StableVector&& other) noexcept {
    chunks_ = std::move(other.chunks_);
    size_ = other.size_.exchange(0);
    return *this;
  }

  [[nodiscard]] int32_t size() const { return size_.load(std::memory_order_acquire); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] const T& operator[](int32_t at) const { return *Place(at); }
  T& operator[](int32_t at) { return *Place(at); }
  [[nodiscard]] const T& back() const { return *Place(size() - 1); }

  void push_back(const T& value) {
    const int32_t at = size_.load(std::memory_order_relaxed);
    EVERLONG_CHECK(at < INT32_MAX);
    const auto [chunk, offset] = Locate(at);
    if (offset == 0 && chunks_[chunk] == nullptr) chunks_[chunk] = Chunk(Allocate(chunk), Free{LengthOf(chunk)});
    std::construct_at(chunks_[chunk].get() + offset, value);
    size_.store(at + 1, std::memory_order_release);
  }

  // Return the allocated bytes.
  [[nodiscard]] int64_t bytes() const {
    int64_t elements = 0;
    for (size_t chunk = 0; chunk < chunks_.size() && chunks_[chunk] != nullptr; ++chunk) {
      elements += static_cast<int64_t>(LengthOf(chunk));
    }
    return elements * static_cast<int64_t>(sizeof(T));
  }

 private:
  static constexpr int kFirstBits = 6;  // the first chunk holds 64 elements
  struct Free {
    size_t length = 0;
    void operator()(T* elements) const { std::allocator<T>().deallocate(elements, length); }
  };
  using Chunk = std::unique_ptr<T[], Free>;

  static constexpr size_t LengthOf(size_t chunk) { return size_t{1} << (chunk + kFirstBits); }
  static T* Allocate(size_t chunk) { return std::allocator<T>().allocate(LengthOf(chunk)); }
  // Chunk c holds the elements from 2^(6 + c) - 2^6.
  static constexpr std::pair<size_t, size_t> Locate(int32_t at) {
    const size_t shifted = static_cast<size_t>(at) + (size_t{1} << kFirstBits);
    const size_t chunk = static_cast<size_t>(std::bit_width(shifted)) - 1 - kFirstBits;
    return {chunk, shifted - LengthOf(chunk)};
  }
  [[nodiscard]] T* Place(int32_t at) const {
    const auto [chunk, offset] = Locate(at);
    return chunks_[chunk].get() + offset;
  }

  std::array<Chunk, 32 - kFirstBits> chunks_;
  std::atomic<int32_t> size_ = 0;
};

}  // namespace everlong
