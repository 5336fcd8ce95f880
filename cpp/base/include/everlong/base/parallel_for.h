// A hook through which the core runs loops on several threads. Without a host's hook a loop runs on the calling thread.
// The Python bindings point it at torch's own pool, so that a process has one pool.
#pragma once

#include <cstdint>

namespace everlong {

using ParallelBody = void (*)(const void* context, int64_t begin, int64_t end);
using ParallelForHook = void (*)(int64_t begin, int64_t end, int64_t grain, const void* context, ParallelBody body);

// Thread-safe. nullptr restores the serial loop. The hook must return only after every part has run.
void SetParallelForHook(ParallelForHook hook);

void ParallelForErased(int64_t begin, int64_t end, int64_t grain, const void* context, ParallelBody body);

// Call body(first, last) for disjoint parts of [begin, end), at least `grain` long if possible. It must not throw.
template <class Body>
void ParallelFor(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  if (begin >= end) return;
  ParallelForErased(begin, end, grain, &body, [](const void* context, int64_t first, int64_t last) {
    (*static_cast<const Body*>(context))(first, last);
  });
}

}  // namespace everlong
