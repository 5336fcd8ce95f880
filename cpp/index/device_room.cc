#include "device_room.h"

#include <algorithm>
#include <string>
#include <utility>

namespace everlong::index {
namespace {

// Small memories take little of a device, large ones need few allocations.
constexpr int64_t kFirstSlabBytes = int64_t{1} << 20;
constexpr int64_t kLargestSlabBytes = int64_t{64} << 20;

}  // namespace

DeviceRoom::DeviceRoom(std::shared_ptr<IndexDevice> device, int64_t most_bytes)
    : device_(std::move(device)), most_bytes_(most_bytes) {}

DeviceRoom::~DeviceRoom() = default;

int64_t DeviceRoom::bytes() const {
  int64_t bytes = search_ ? search_->bytes() : 0;
  for (const Memory& slab : slabs_) bytes += slab.bytes();
  return bytes;
}

Result<DeviceRoom::Memory> DeviceRoom::Allocate(int64_t bytes) {
  const int64_t held = this->bytes();
  if (bytes > most_bytes_ - held) {
    return CapacityError(std::to_string(held) + " bytes are taken, and another " + std::to_string(bytes) +
                         " do not fit in the " + std::to_string(most_bytes_) + " that may be");
  }
  EVERLONG_ASSIGN_OR_RETURN(std::byte* const at, device_->Allocate(bytes));
  return Memory(*device_, at, bytes);
}

Result<std::byte*> DeviceRoom::Place(std::span<const std::byte> from, int64_t coming) {
  const auto bytes = std::ssize(from);
  if (const auto free = free_.find(bytes); free != free_.end() && !free->second.empty()) {
    std::byte* const at = free->second.back();
    EVERLONG_RETURN_IF_ERROR(device_->Upload(at, from));
    free->second.pop_back();
    return at;
  }
  if (slabs_.empty() || slabs_.back().bytes() - slab_used_ < bytes) {
    // The room for a search may go; it is allocated again in what is left.
    if (most_bytes_ - this->bytes() < coming) search_.reset();
    // Do not take room for later pages from searches.
    const int64_t held = this->bytes();
    const int64_t later = std::min(std::clamp(held, kFirstSlabBytes, kLargestSlabBytes), (most_bytes_ - held) / 2);
    EVERLONG_ASSIGN_OR_RETURN(Memory memory, Allocate(std::max(coming, later)));
    slabs_.push_back(std::move(memory));
    slab_used_ = 0;
  }
  std::byte* const at = slabs_.back().at(slab_used_);
  EVERLONG_RETURN_IF_ERROR(device_->Upload(at, from));
  slab_used_ += bytes;
  return at;
}

Status DeviceRoom::Remove(std::byte* at, int64_t bytes) {
  EVERLONG_RETURN_IF_ERROR(device_->Upload(at, std::vector<std::byte>(static_cast<size_t>(bytes))));
  free_[bytes].push_back(at);
  return OkStatus();
}

int64_t DeviceRoom::search_bytes() const { return most_bytes_ - bytes() + (search_ ? search_->bytes() : 0); }

Status DeviceRoom::NoRoom(int64_t search_bytes) const {
  return CapacityError("a search needs " + std::to_string(search_bytes) + " bytes beside what is there, and " +
                       std::to_string(this->search_bytes()) + " are left of " + std::to_string(most_bytes_));
}

Result<std::byte*> DeviceRoom::ForASearch(int64_t bytes) {
  if (!search_ || search_->bytes() < bytes) {
    search_.reset();
    EVERLONG_ASSIGN_OR_RETURN(search_, Allocate(bytes));
  }
  return search_->at(0);
}

void DeviceRoom::GiveBack() {
  search_.reset();
  slabs_.clear();
  free_.clear();
}

}  // namespace everlong::index
