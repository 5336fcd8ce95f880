#include "ram_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "everlong/base/huge_pages.h"

namespace everlong::store {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMapped = 4 * kHugePage;  // from this size a buffer is a mapping of its own

// Map memory from the beginning of a huge page, so that none is shared with what lies before; null without room.
std::byte* Map(size_t size) {
  static const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t reserved = size + kHugePage;
  void* const mapping = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(mapping);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(mapping) % kHugePage) % kHugePage;
  const size_t end = before + (size + kPage - 1) / kPage * kPage;
  if (before > 0) static_cast<void>(munmap(first, before));
  if (end < reserved) static_cast<void>(munmap(first + end, reserved - end));
  AdviseHugePages(first + before, static_cast<int64_t>(size));
  return first + before;
}

}  // namespace

RamBuffer::RamBuffer(size_t size) : size_(size) {
  if (size >= kMapped) data_ = Map(size);
  mapped_ = data_ != nullptr;
  if (!mapped_) data_ = static_cast<std::byte*>(::operator new(size));
}

RamBuffer::~RamBuffer() {
  if (mapped_) {
    static_cast<void>(munmap(data_, size_));
  } else {
    ::operator delete(data_);
  }
}

}  // namespace everlong::store
