#include "ram_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "everlong/base/huge_pages.h"

namespace everlong::store {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMapped = 4 * kHugePage;  // from here on a mapping of its own

void Unmap(uintptr_t begin, uintptr_t end) {
  if (begin < end) static_cast<void>(munmap(reinterpret_cast<void*>(begin), end - begin));
}

// From the beginning of a huge page on, so that none is shared with what lies before; null where there is no room.
std::byte* Map(size_t size) {
  static const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const size_t reserved = size + kHugePage;
  void* const mapping = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(mapping);
  const uintptr_t begin = (first + kHugePage - 1) / kHugePage * kHugePage;
  Unmap(first, begin);
  Unmap((begin + size + kPage - 1) / kPage * kPage, first + reserved);
  auto* const data = reinterpret_cast<std::byte*>(begin);
  AdviseHugePages(data, static_cast<int64_t>(size));
  return data;
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
