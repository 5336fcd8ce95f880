// Huge pages for large buffers: page faults of a fresh buffer can cost more than filling it.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>

namespace everlong {

// Ask for huge pages in a buffer of this process that holds several. This is only advice: results are the same without.
inline void AdviseHugePages([[maybe_unused]] void* buffer, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kHugePage = 2 << 20;
  if (bytes < static_cast<int64_t>(4 * kHugePage)) return;
  const auto begin = reinterpret_cast<uintptr_t>(buffer);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE));
#endif
}

}  // namespace everlong
