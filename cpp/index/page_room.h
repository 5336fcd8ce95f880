// Memory for the words of pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "everlong/base/cache_lines.h"

namespace everlong::index {

// Words never move, and growing copies nothing. One thread at a time uses it.
class PageRoom {
 public:
  // Return room for so many words, at least one, at the beginning of a cache line if all that was reserved are whole
  // lines. They may be anything.
  uint32_t* Reserve(size_t words);
  // Make words that were reserved zeros, and use them again. Others are mapped, and stay in their file.
  void Release(std::span<const uint32_t> words);
  // Return the bytes that were allocated; mappings are the system's.
  [[nodiscard]] int64_t bytes() const { return static_cast<int64_t>(total_words_ * sizeof(uint32_t)); }

 private:
  struct FreeSlab {
    void operator()(uint32_t* words) const { ::operator delete[](words, std::align_val_t{kCacheLine}); }
  };

  struct Slab {
    std::unique_ptr<uint32_t[], FreeSlab> words;
    size_t size = 0;
  };

  std::vector<Slab> slabs_;
  size_t slab_used_ = 0;                           // of the last slab
  size_t total_words_ = 0;                         // of all slabs
  std::map<size_t, std::vector<uint32_t*>> free_;  // by words: memory of forgotten pages
};

}  // namespace everlong::index
