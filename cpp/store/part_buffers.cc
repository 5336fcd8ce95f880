#include "part_buffers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "everlong/base/cache_lines.h"
#include "everlong/base/check.h"

namespace everlong::store {
namespace {

constexpr int64_t kRegionBytes = int64_t{64} << 20;  // of addresses: RAM comes with the first use
constexpr int64_t kSlotMultiple = kCacheLine;
constexpr int64_t kMostKept = int64_t{8} << 20;

// Give the whole pages inside of a slot back to the system. What it shares with its neighbours stays.
void Empty(std::byte* slot, int64_t size) {
  static const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(slot);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(size)) / kPage * kPage;
  if (first < last) static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED));
}

}  // namespace

std::shared_ptr<PartBuffers> PartBuffers::Create() { return std::shared_ptr<PartBuffers>(new PartBuffers()); }

PartBuffers::~PartBuffers() {
  EVERLONG_CHECK(taken_bytes_ == 0);
  for (const Region& region : regions_) munmap(region.begin, static_cast<size_t>(region.bytes));
}

std::shared_ptr<std::byte[]> PartBuffers::Take(int64_t bytes) {
  EVERLONG_CHECK(bytes >= 1);
  const int64_t size = (bytes + kSlotMultiple - 1) / kSlotMultiple * kSlotMultiple;
  std::byte* slot = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    slot = Find(size);
    if (slot == nullptr) return nullptr;
    taken_bytes_ += size;
  }
  // Without the lock: if there is no memory for the pointer's own data, the slot is given back before it throws.
  return {slot, [buffers = shared_from_this(), size](std::byte* taken) { buffers->GiveBack(taken, size); }};
}

std::byte* PartBuffers::Find(int64_t size) {
  Slots& slots = slots_[size];
  std::vector<std::byte*>& free = slots.kept.empty() ? slots.empty : slots.kept;
  if (!free.empty()) {
    if (&free == &slots.kept) kept_bytes_ -= size;
    std::byte* const slot = free.back();
    free.pop_back();
    return slot;
  }
  // Make room for all slots of its size to come back, because that must not fail.
  const size_t made = slots.made + 1;
  for (std::vector<std::byte*>* const list : {&slots.kept, &slots.empty}) {
    if (list->capacity() < made) list->reserve(2 * made);
  }
  if (regions_.empty() || regions_.back().bytes - used_ < size) {
    if (regions_.size() == regions_.capacity()) regions_.reserve(2 * regions_.size() + 1);
    const int64_t region_bytes = std::max(kRegionBytes, size);
    void* const region = mmap(nullptr, static_cast<size_t>(region_bytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return nullptr;
    regions_.push_back({static_cast<std::byte*>(region), region_bytes});
    used_ = 0;
  }
  std::byte* const slot = regions_.back().begin + used_;
  used_ += size;
  slots.made = made;
  return slot;
}

void PartBuffers::GiveBack(std::byte* slot, int64_t size) {
  {
    const std::scoped_lock lock(mutex_);
    taken_bytes_ -= size;
    if (kept_bytes_ + size <= kMostKept) {
      kept_bytes_ += size;
      slots_[size].kept.push_back(slot);
      return;
    }
  }
  Empty(slot, size);
  const std::scoped_lock lock(mutex_);
  slots_[size].empty.push_back(slot);
}

int64_t PartBuffers::bytes() const {
  const std::scoped_lock lock(mutex_);
  return taken_bytes_ + kept_bytes_;
}

}  // namespace everlong::store
