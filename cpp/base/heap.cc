#include "everlong/base/heap.h"

#include <unistd.h>

#include <atomic>
#include <fstream>

#if defined(__linux__)
#include <malloc.h>
#endif

namespace everlong {
namespace {

// Return the RAM that the process takes; 0 where the system does not say.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t pages = 0;
  statm >> size >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
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
