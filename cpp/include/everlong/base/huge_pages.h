// Huge pages for large buffers: fresh ones would otherwise cost more in page faults than in their bytes.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>

namespace everlong {

// Asks for them where a buffer of this process holds several. Advice only: without them all is the same.
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
