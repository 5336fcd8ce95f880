// Give freed heap memory back to the system.
#pragma once

#if defined(__linux__)
#include <malloc.h>
#endif

namespace everlong {

// Give whole pages of freed heap back to the system. A forward pass frees its memory, and small objects that stay are
// then allocated inside that memory. The next forward finds no large free piece and takes more from the system.
// Thread-safe. It takes tens of milliseconds for a heap of hundreds of megabytes, and does nothing without glibc.
inline void ReturnFreedHeap() {
#if defined(__GLIBC__)
  static_cast<void>(malloc_trim(0));
#endif
}

}  // namespace everlong
