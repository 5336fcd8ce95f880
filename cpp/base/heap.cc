#include "everlong/base/heap.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <new>
#include <vector>

#include "everlong/base/file.h"
#include "everlong/base/status.h"

#if defined(__linux__)
#include <malloc.h>
#endif

namespace everlong {
namespace {

// Return the RAM that the process takes; 0 where the system does not say.
int64_t ResidentBytes() try {
  const Result<std::vector<std::byte>> statm = ReadWhole("/proc/self/statm", 4096);
  if (!statm.ok()) return 0;
  const char* const begin = reinterpret_cast<const char*>(statm->data());
  const char* const end = begin + statm->size();
  const char* const second = std::find(begin, end, ' ');  // of its numbers, in pages
  int64_t pages = 0;
  std::from_chars(std::min(second + 1, end), end, pages);
  return pages * ::sysconf(_SC_PAGESIZE);
} catch (const std::bad_alloc&) {
  return 0;
}

std::atomic<int64_t> g_least_resident = 0;  // at a call since the last giving back; 0 before the first

}  // namespace

void ReturnFreedHeap() {
#if defined(__GLIBC__)
  static_cast<void>(malloc_trim(0));
#endif
}

void ReturnFreedHeapOnceGrown() {
  const int64_t now = ResidentBytes();
  const int64_t least = g_least_resident;
  if (least > 0 && now - least >= kGrownHeap) {
    ReturnFreedHeap();
    g_least_resident = ResidentBytes();
  } else if (least == 0 || now < least) {
    g_least_resident = now;
  }
}

}  // namespace everlong
