// The C library's heap: what was freed and is kept for later.
#pragma once

#if defined(__linux__)
#include <malloc.h>
#endif

namespace everlong {

// Gives whole pages of freed memory back to the system. A model's forwards free what they took, and a few small things
// of a memory that stay come to lie in it; the next forward finds no such room in one piece, and takes more.
// Thread-safe; tens of milliseconds for a heap of hundreds of megabytes. Does nothing where the C library is not glibc.
inline void ReturnFreedHeap() {
#if defined(__GLIBC__)
  static_cast<void>(malloc_trim(0));
#endif
}

}  // namespace everlong
