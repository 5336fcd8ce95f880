// Copies past the caches, for buffers too large to stay cached until they are read. The target need not be fetched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace everlong::kv {

// The sizes from which copies are streamed. Payloads go to a disk or are read late. Slots of a frame are read by the
// next forward, and may be in a large cache.
inline constexpr int64_t kStreamedPayloadBytes = 8 << 20;
inline constexpr int64_t kStreamedFrameBytes = 32 << 20;

// memcpy past the caches. Call FenceStreams() before another thread reads.
inline void StreamCopy(const std::byte* from, std::byte* to, int64_t bytes) {
#if defined(__SSE2__)
  const auto rest = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % 64);
  const int64_t head = rest == 0 ? 0 : 64 - rest;
  if (bytes >= head + 64) {
    std::memcpy(to, from, static_cast<size_t>(head));
    int64_t at = head;
    for (; at + 64 <= bytes; at += 64) {
      for (int64_t part = at; part < at + 64; part += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
      }
    }
    std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
    return;
  }
#endif
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

inline void FenceStreams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace everlong::kv
