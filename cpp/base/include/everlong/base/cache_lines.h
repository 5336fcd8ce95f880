// Buffers aligned to a cache line, so that a vector register as wide as a line never spans two lines.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace everlong {

inline constexpr size_t kCacheLine = 64;

template <class T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <class U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kCacheLine})); }
  void deallocate(T* buffer, size_t) { ::operator delete(buffer, std::align_val_t{kCacheLine}); }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};

template <class T>
using CacheLineVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace everlong
