#include "page_room.h"

#include <algorithm>
#include <utility>

namespace everlong::index {
namespace {

// Small memories stay small. Large ones get slabs that waste no more than their unused end.
constexpr size_t kFirstSlabWords = size_t{1} << 14;
constexpr size_t kLargestSlabWords = size_t{1} << 21;

}  // namespace

uint32_t* PageRoom::Reserve(size_t words) {
  if (const auto free = free_.find(words); free != free_.end() && !free->second.empty()) {
    uint32_t* const again = free->second.back();
    free->second.pop_back();
    return again;
  }
  if (slab_words_ - slab_used_ < words) {
    const size_t slab_words = std::max(words, std::clamp(total_words_, kFirstSlabWords, kLargestSlabWords));
    std::unique_ptr<uint32_t[], FreeSlab> slab(new (std::align_val_t{kCacheLine}) uint32_t[slab_words]);
    slabs_.push_back(std::move(slab));
    slab_words_ = slab_words;  // only after the allocation
    slab_used_ = 0;
    total_words_ += slab_words_;
  }
  uint32_t* const reserved = slabs_.back().get() + slab_used_;
  slab_used_ += words;
  return reserved;
}

void PageRoom::Release(std::span<uint32_t> words) {
  std::ranges::fill(words, 0U);
  free_[words.size()].push_back(words.data());
}

}  // namespace everlong::index
