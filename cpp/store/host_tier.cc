#include "host_tier.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "everlong/base/check.h"

namespace everlong::store {
namespace {

constexpr int kMaxUses = 3;
constexpr int64_t kSmallShare = 10;  // the small queue's share is one part in so many

}  // namespace

size_t HostTier::Hash::operator()(const Key& key) const {
  // splitmix64's finaliser over the three numbers.
  uint64_t x = static_cast<uint64_t>(key.block) * 0x9E3779B97F4A7C15U + (static_cast<uint64_t>(key.page) << 24U) +
               static_cast<uint64_t>(key.part);
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<size_t>(x ^ (x >> 31U));
}

std::vector<HostTier::Bytes> HostTier::Find(int64_t block, int32_t page, int32_t first, int32_t count,
                                            const PageRow& row) {
  std::vector<Bytes> found(static_cast<size_t>(count));
  const std::scoped_lock lock(mutex_);
  for (int32_t i = 0; i < count; ++i) {
    const auto entry = entries_.find({block, page, first + i});
    if (entry == entries_.end() || !entry->second.Is(row, first + i)) continue;
    entry->second.uses = std::min(entry->second.uses + 1, kMaxUses);
    found[static_cast<size_t>(i)] = entry->second.bytes;
  }
  return found;
}

void HostTier::Insert(int64_t block, int32_t page, int32_t first, const PageRow& row, std::span<const std::byte> parts,
                      int64_t erasures) {
  if (row.part_bytes > budget_) return;
  try {
    InsertCopies(block, page, first, row, parts, erasures);
  } catch (const std::bad_alloc&) {  // a cache may leave it out; what it has is whole
  }
}

void HostTier::InsertCopies(int64_t block, int32_t page, int32_t first, const PageRow& row,
                            std::span<const std::byte> parts, int64_t erasures) {
  const int64_t part_bytes = row.part_bytes;
  const auto size = static_cast<size_t>(part_bytes);
  std::vector<Bytes> copies;
  for (size_t at = 0; at < parts.size(); at += size) {
    auto copy = buffers_->Take(part_bytes);
    if (copy == nullptr) return;  // a cache may leave it out
    std::memcpy(copy.get(), parts.data() + at, size);
    copies.push_back(std::move(copy));
  }
  Evicted evicted;
  const std::scoped_lock lock(mutex_);
  if (part_bytes > budget_ || erasures != erasures_) return;
  for (size_t i = 0; i < copies.size(); ++i) {
    const Key key{block, page, first + static_cast<int32_t>(i)};
    if (const auto old = entries_.find(key); old != entries_.end()) {
      if (old->second.Is(row, key.part)) continue;
      Remove(key, evicted);
    }
    EvictFor(part_bytes, evicted);
    const bool in_main = is_ghost_.erase(key) > 0;
    std::deque<Key>& queue = in_main ? main_ : small_;
    queue.push_back(key);
    try {
      entries_.emplace(
          key, Entry{std::move(copies[i]), part_bytes, row.part_crcs[static_cast<size_t>(key.part)], 0, in_main});
    } catch (const std::bad_alloc&) {
      queue.pop_back();
      throw;
    }
    bytes_ += part_bytes;
    if (!in_main) small_bytes_ += part_bytes;
  }
}

void HostTier::Remove(const Key& key, Evicted& evicted) {
  const auto entry = entries_.find(key);
  std::erase(entry->second.in_main ? main_ : small_, key);
  bytes_ -= entry->second.size;
  if (!entry->second.in_main) small_bytes_ -= entry->second.size;
  evicted.push_back(std::move(entry->second.bytes));
  entries_.erase(entry);
}

void HostTier::EvictFor(int64_t bytes, Evicted& evicted) {
  while (bytes_ + bytes > budget_ && !entries_.empty()) {
    if (!small_.empty() && (small_bytes_ > budget_ / kSmallShare || main_.empty())) {
      EvictFromSmall(evicted);
    } else {
      EvictFromMain(evicted);
    }
  }
}

void HostTier::EvictFromSmall(Evicted& evicted) {
  const Key key = small_.front();
  const auto entry = entries_.find(key);
  EVERLONG_CHECK(entry != entries_.end() && !entry->second.in_main);
  if (entry->second.uses > 0) {
    main_.push_back(key);
    small_.pop_front();
    small_bytes_ -= entry->second.size;
    entry->second.uses = 0;
    entry->second.in_main = true;
    return;
  }
  Remember(key);
  evicted.push_back(entry->second.bytes);
  small_.pop_front();
  small_bytes_ -= entry->second.size;
  bytes_ -= entry->second.size;
  entries_.erase(entry);
}

void HostTier::EvictFromMain(Evicted& evicted) {
  if (main_.empty()) return;
  const Key key = main_.front();
  const auto entry = entries_.find(key);
  EVERLONG_CHECK(entry != entries_.end() && entry->second.in_main);
  if (entry->second.uses > 0) {
    main_.push_back(key);
    main_.pop_front();
    --entry->second.uses;
    return;
  }
  evicted.push_back(entry->second.bytes);
  main_.pop_front();
  bytes_ -= entry->second.size;
  entries_.erase(entry);
}

void HostTier::Remember(const Key& key) {
  if (!is_ghost_.contains(key)) {
    ghosts_.push_back(key);
    is_ghost_.insert(key);
  }
  // Keep as many as there are entries. Those that left longer ago were not asked for soon enough.
  while (ghosts_.size() > std::max<size_t>(1, entries_.size())) {
    is_ghost_.erase(ghosts_.front());
    ghosts_.pop_front();
  }
}

void HostTier::Erase(std::span<const int64_t> blocks) {
  const std::unordered_set<int64_t> gone(blocks.begin(), blocks.end());
  Evicted evicted;
  const std::scoped_lock lock(mutex_);
  ++erasures_;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (!gone.contains(entry->first.block)) {
      ++entry;
      continue;
    }
    bytes_ -= entry->second.size;
    if (!entry->second.in_main) small_bytes_ -= entry->second.size;
    evicted.push_back(std::move(entry->second.bytes));
    entry = entries_.erase(entry);
  }
  if (evicted.empty()) return;
  // Remove their places too. No eviction might ever reach them, and a part that comes again would have its old place.
  for (std::deque<Key>* const queue : {&small_, &main_}) {
    std::erase_if(*queue, [&gone](const Key& key) { return gone.contains(key.block); });
  }
}

void HostTier::SetBudget(int64_t budget) {
  Evicted evicted;
  const std::scoped_lock lock(mutex_);
  budget_ = budget;
  EvictFor(0, evicted);
}

int64_t HostTier::erasures() const {
  const std::scoped_lock lock(mutex_);
  return erasures_;
}

int64_t HostTier::bytes() const {
  const std::scoped_lock lock(mutex_);
  return bytes_;
}

}  // namespace everlong::store
