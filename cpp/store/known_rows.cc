#include "known_rows.h"

namespace everlong::store {
namespace {

// Return about how much RAM a block's rows take.
int64_t BytesOf(const std::vector<std::shared_ptr<const PageRow>>& rows) {
  constexpr size_t kBlock = 200;  // of the maps and the list
  constexpr size_t kRow = sizeof(PageRow) + 48;
  size_t bytes = kBlock + rows.capacity() * sizeof(rows[0]);
  for (const auto& row : rows) {
    if (row != nullptr) bytes += kRow + row->part_crcs.capacity() * sizeof(uint32_t);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

KnownRows::Rows KnownRows::Find(int64_t block) const {
  const std::scoped_lock lock(mutex_);
  const auto found = rows_.find(block);
  return found == rows_.end() ? nullptr : found->second;
}

void KnownRows::Put(int64_t block, const Rows& rows) {
  const int64_t bytes = BytesOf(*rows);
  const std::scoped_lock lock(mutex_);
  DropOne(block);
  order_.push_back(block);
  rows_.emplace(block, rows);
  bytes_ += bytes;
  while (bytes_ > most_bytes_ && order_.size() > 1) {
    DropOne(order_.front());
    order_.pop_front();
  }
  // Blocks that left in another way are still in the order.
  if (order_.size() > 2 * rows_.size() + 16) {
    std::erase_if(order_, [this](int64_t of) { return !rows_.contains(of); });
  }
}

void KnownRows::DropOne(int64_t block) {
  const auto found = rows_.find(block);
  if (found == rows_.end()) return;
  bytes_ -= BytesOf(*found->second);
  rows_.erase(found);
}

void KnownRows::Drop(std::span<const int64_t> blocks) {
  const std::scoped_lock lock(mutex_);
  for (const int64_t block : blocks) DropOne(block);
}

void KnownRows::Clear() {
  const std::scoped_lock lock(mutex_);
  rows_.clear();
  order_.clear();
  bytes_ = 0;
}

int64_t KnownRows::bytes() const {
  const std::scoped_lock lock(mutex_);
  return bytes_;
}

}  // namespace everlong::store
