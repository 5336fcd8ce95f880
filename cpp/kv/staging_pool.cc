#include "staging_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace everlong::kv {
namespace {

constexpr int64_t kSmallestPiece = 64 * 1024;

}  // namespace

StagingPool::StagingPool(std::shared_ptr<CopyQueue> allocator, int64_t limit)
    : allocator_(std::move(allocator)), limit_(limit) {}

StagingPool::~StagingPool() {
  for (const auto& [capacity, pieces] : kept_) {
    for (std::byte* piece : pieces) allocator_->FreeHost(piece);
  }
}

int64_t StagingPool::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

std::optional<StagingPiece> StagingPool::TakeKept(int64_t capacity) {
  const auto found = kept_.find(capacity);
  if (found == kept_.end()) return std::nullopt;
  const StagingPiece piece{found->second.back(), capacity};
  found->second.pop_back();
  if (found->second.empty()) kept_.erase(found);
  return piece;
}

void StagingPool::MakeRoom(int64_t capacity) {
  while (!kept_.empty() && allocated_ + capacity > limit_) {
    const int64_t largest = kept_.rbegin()->first;
    allocator_->FreeHost(TakeKept(largest)->data);
    allocated_ -= largest;
  }
}

Result<std::optional<StagingPiece>> StagingPool::TryTake(int64_t bytes, int64_t keep_free) {
  // A power of two, so that pieces fit later requests. A size that would round over the limit gets the limit itself.
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kSmallestPiece))));
  const int64_t capacity = std::min(rounded, limit_);
  const std::lock_guard lock(mutex_);
  if (capacity > limit_ - taken_ - keep_free) return std::optional<StagingPiece>();
  std::optional<StagingPiece> piece = TakeKept(capacity);
  if (!piece.has_value()) {
    MakeRoom(capacity);
    EVERLONG_ASSIGN_OR_RETURN(std::byte * data, allocator_->AllocateHost(capacity));
    allocated_ += capacity;
    piece = StagingPiece{data, capacity};
  }
  taken_ += capacity;
  return piece;
}

void StagingPool::GiveBack(StagingPiece piece) {
  const std::lock_guard lock(mutex_);
  taken_ -= piece.capacity;
  kept_[piece.capacity].push_back(piece.data);
}

}  // namespace everlong::kv
