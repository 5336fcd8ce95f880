#include "page_room.h"

#include <algorithm>
#include <functional>
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
  if (slabs_.empty() || slabs_.back().size - slab_used_ < words) {
    const size_t size = std::max(words, std::clamp(total_words_, kFirstSlabWords, kLargestSlabWords));
    Slab slab{std::unique_ptr<uint32_t[], FreeSlab>(new (std::align_val_t{kCacheLine}) uint32_t[size]), size};
    slabs_.push_back(std::move(slab));
    slab_used_ = 0;  // only after the allocation
    total_words_ += size;
  }
  uint32_t* const reserved = slabs_.back().words.get() + slab_used_;
  slab_used_ += words;
  return reserved;
}

void PageRoom::Release(std::span<const uint32_t> words) {
  for (const Slab& slab : slabs_) {
    const std::span<uint32_t> all(slab.words.get(), slab.size);
    if (std::less<>()(words.data(), all.data()) || !std::less<>()(words.data(), all.data() + all.size())) continue;
    const std::span<uint32_t> own = all.subspan(static_cast<size_t>(words.data() - all.data()), words.size());
    std::ranges::fill(own, 0U);
    free_[own.size()].push_back(own.data());
    return;
  }
}

}  // namespace everlong::index
