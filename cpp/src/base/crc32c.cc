#include "everlong/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define EVERLONG_CRC32C_SSE42 1
#endif

namespace everlong {
namespace {

static_assert(std::endian::native == std::endian::little, "the slicing tables read little-endian words");

constexpr uint32_t kReflectedPolynomial = 0x82F63B78U;

// Slicing by 8: table[k][b] is the CRC of byte b followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kReflectedPolynomial : 0U);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xFFU];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t ExtendPortable(uint32_t crc, const std::byte* data, size_t size) {
  while (size >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFFU];
    data += 8;
    size -= 8;
  }
  for (; size > 0; --size, ++data) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<uint32_t>(*data)) & 0xFFU];
  }
  return crc;
}

#ifdef EVERLONG_CRC32C_SSE42
__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, const std::byte* data, size_t size) {
  uint64_t wide = crc;
  while (size >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    wide = _mm_crc32_u64(wide, word);
    data += 8;
    size -= 8;
  }
  return ExtendPortable(static_cast<uint32_t>(wide), data, size);
}
#endif

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  const uint32_t start = ~crc;
#ifdef EVERLONG_CRC32C_SSE42
  if (__builtin_cpu_supports("sse4.2") != 0) return ~ExtendSse42(start, bytes.data(), bytes.size());
#endif
  return ~ExtendPortable(start, bytes.data(), bytes.size());
}

}  // namespace everlong
