// Memory for the words of pages: of this process, or mapped from a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "everlong/base/cache_lines.h"
#include "everlong/base/file_mapping.h"

namespace everlong::index {

// Words never move, and growing copies nothing. One thread at a time uses it.
class PageRoom {
 public:
  // Return room for so many words, at least one, at the beginning of a cache line if all that was reserved are whole
  // lines. They may be anything.
  uint32_t* Reserve(size_t words);
  // Make words that were reserved zeros, and use them again. Others lie in a mapping that is kept, and stay in its
  // file.
  void Release(std::span<const uint32_t> words);
  // Keep a mapping as long as this object.
  void Keep(std::shared_ptr<FileMapping> mapping) { mappings_.push_back(std::move(mapping)); }
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
  std::vector<std::shared_ptr<FileMapping>> mappings_;
};

}  // namespace everlong::index
