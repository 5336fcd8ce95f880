// How mapped bytes come from the disk. All of this is only advice: the bytes are the same without.
#pragma once

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <span>

namespace everlong {

// Read only what is used of these bytes of a mapping, and nothing beside it: a read of a few far from each other would
// else bring in megabytes for each, and push what other reads need out of RAM. They are read in small pieces then, one
// after the other, so call ReadSoon before many of them are used.
template <class T>
void ReadByThemselves([[maybe_unused]] std::span<const T> mapped) {
#if defined(__unix__) || defined(__APPLE__)
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(mapped.data()) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size_bytes()) / page * page;
  if (first < last) static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_RANDOM));
#endif
}

// Begin to read bytes of a mapping, without waiting for them. Where they are in RAM it takes about a microsecond.
template <class T>
void ReadSoon([[maybe_unused]] std::span<const T> mapped) {
#if defined(__unix__) || defined(__APPLE__)
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(mapped.data()) / page * page;
  const uintptr_t last = reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size_bytes();
  if (!mapped.empty()) static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_WILLNEED));
#endif
}

// Calls ReadSoon of spans one after the other, once for those that overlap or follow each other in memory.
class SoonReads {
 public:
  SoonReads() = default;
  ~SoonReads() { Flush(); }
  SoonReads(const SoonReads&) = delete;
  SoonReads& operator=(const SoonReads&) = delete;

  void Add(std::span<const uint32_t> mapped) {
    const uint32_t* const end = mapped.data() + mapped.size();
    if (first_ <= mapped.data() && mapped.data() <= last_) {
      last_ = std::max(last_, end);
      return;
    }
    Flush();
    first_ = mapped.data();
    last_ = end;
  }

 private:
  void Flush() { ReadSoon(std::span(first_, last_)); }

  const uint32_t* first_ = nullptr;
  const uint32_t* last_ = nullptr;
};

}  // namespace everlong
