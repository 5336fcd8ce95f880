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
// The instruction takes three cycles and a new one can begin in each cycle, so three stretches of bytes are summed side
// by side. A sum is linear: bytes before `bytes` more of them count as if those were zeros.
constexpr uint32_t BehindZeroByte(uint32_t crc) { return (crc >> 8) ^ kTables[0][crc & 0xFFU]; }

// ahead[k][b] is the CRC of byte k of a sum, with value b, before `bytes` zero bytes, a power of two.
class ZeroBytes {
 public:
  explicit constexpr ZeroBytes(size_t bytes) {
    std::array<uint32_t, 32> images{};  // of each bit of a sum
    for (size_t bit = 0; bit < images.size(); ++bit) images[bit] = BehindZeroByte(uint32_t{1} << bit);
    for (size_t done = 1; done < bytes; done *= 2) {
      const std::array<uint32_t, 32> once = images;
      for (uint32_t& image : images) image = SumOf(once, image);
    }
    for (size_t k = 0; k < ahead_.size(); ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) ahead_[k][byte] = SumOf(images, byte << (8 * k));
    }
  }
  [[nodiscard]] constexpr uint32_t Behind(uint32_t crc) const {
    return ahead_[0][crc & 0xFFU] ^ ahead_[1][(crc >> 8) & 0xFFU] ^ ahead_[2][(crc >> 16) & 0xFFU] ^
           ahead_[3][crc >> 24];
  }

 private:
  static constexpr uint32_t SumOf(const std::array<uint32_t, 32>& images, uint32_t crc) {
    uint32_t sum = 0;
    for (size_t bit = 0; bit < images.size(); ++bit) sum ^= ((crc >> bit) & 1U) != 0 ? images[bit] : 0U;
    return sum;
  }

  std::array<std::array<uint32_t, 256>, 4> ahead_{};
};

// The bytes of each of three stretches: long ones for large buffers, short ones for the rest.
constexpr size_t kLongStretch = 8192;
constexpr size_t kShortStretch = 256;
constexpr ZeroBytes kLongZeros(kLongStretch);
constexpr ZeroBytes kShortZeros(kShortStretch);

__attribute__((target("sse4.2"))) inline uint64_t AddWord(uint64_t crc, const std::byte* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return _mm_crc32_u64(crc, word);
}

template <size_t kStretch>
__attribute__((target("sse4.2"))) uint64_t ExtendByThree(uint64_t crc, const std::byte*& data, size_t& size,
                                                         const ZeroBytes& zeros) {
  for (; size >= 3 * kStretch; data += 3 * kStretch, size -= 3 * kStretch) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t at = 0; at < kStretch; at += 8) {
      crc = AddWord(crc, data + at);
      second = AddWord(second, data + kStretch + at);
      third = AddWord(third, data + 2 * kStretch + at);
    }
    second ^= zeros.Behind(static_cast<uint32_t>(crc));
    crc = third ^ zeros.Behind(static_cast<uint32_t>(second));
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, const std::byte* data, size_t size) {
  uint64_t wide = ExtendByThree<kLongStretch>(crc, data, size, kLongZeros);
  wide = ExtendByThree<kShortStretch>(wide, data, size, kShortZeros);
  for (; size >= 8; data += 8, size -= 8) wide = AddWord(wide, data);
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
