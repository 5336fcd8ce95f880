// Any bytes as an exported memory: refused with a reason, or a memory in which every checksum is right.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/crc32c.h"
#include "everlong/store/memory_store.h"

namespace {

// Chunks get the checksums that they should have: no fuzzer guesses them.
void RightChecksums(std::vector<uint8_t>& file) {
  constexpr size_t kPreamble = 16;
  constexpr size_t kHeader = 16;
  for (size_t at = kPreamble; at + kHeader <= file.size();) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + at + 8, sizeof length);
    if (length > file.size() - at - kHeader) return;
    const auto part = [&file](size_t begin, size_t count) {
      return std::as_bytes(std::span(file).subspan(begin, count));
    };
    uint32_t crc = everlong::Crc32c(part(at, 4));
    crc = everlong::Crc32c(part(at + 8, 8), crc);
    crc = everlong::Crc32c(part(at + kHeader, length), crc);
    std::memcpy(file.data() + at + 4, &crc, sizeof crc);
    at += kHeader + length;
  }
}

void Import(const std::vector<uint8_t>& file) {
  static const int memory = ::memfd_create("fuzzed", 0);
  EVERLONG_CHECK(memory >= 0 && ::ftruncate(memory, 0) == 0);
  EVERLONG_CHECK(::pwrite(memory, file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  const auto imported = everlong::store::MemoryStore::Import(path, std::nullopt, {.host_bytes = 64 << 20});
  if (!imported.ok()) return;
  const auto report = (*imported)->Verify(false);
  EVERLONG_CHECK(report.ok() && report->damage.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> file(data, data + size);
  Import(file);
  RightChecksums(file);
  Import(file);
  return 0;
}
