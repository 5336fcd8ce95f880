// Give freed heap memory back to the system.
#pragma once

#include <cstdint>

namespace everlong {

// Give whole pages of freed heap back to the system. A forward pass frees its memory, and small objects that stay are
// then allocated inside that memory. The next forward finds no large free piece and takes more from the system.
// Thread-safe. It takes tens of milliseconds for a heap of hundreds of megabytes, and does nothing without glibc.
void ReturnFreedHeap();

// Do so once the process takes so many bytes of RAM more than at its least since the last time. Then a large heap that
// does not grow costs a look at its size alone. The first call of a process only looks. Thread-safe.
inline constexpr int64_t kGrownHeap = int64_t{64} << 20;
void ReturnFreedHeapOnceGrown();

}  // namespace everlong
