#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "everlong/base/crc32c.h"

namespace everlong {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// RFC 3720, appendix B.4, and the customary check value of the CRC catalogue.
TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283U);
  const std::array<uint8_t, 32> zeros{};
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(zeros))), 0x8A9136AAU);
  std::array<uint8_t, 32> ones{};
  ones.fill(0xFF);
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(ones))), 0x62A8AB43U);
  std::array<uint8_t, 32> ascending{};
  for (size_t i = 0; i < ascending.size(); ++i) ascending[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(ascending))), 0x46DD794EU);
  EXPECT_EQ(Crc32c({}), 0U);
}

TEST(Crc32c, ContinuesAcrossEverySplit) {
  std::vector<std::byte> data(67);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 + 5);
  const std::span<const std::byte> all(data);
  for (size_t split = 0; split <= data.size(); ++split) {
    EXPECT_EQ(Crc32c(all.subspan(split), Crc32c(all.first(split))), Crc32c(all));
  }
}

// By the definition, bit by bit.
uint32_t Bitwise(std::span<const std::byte> bytes, uint32_t crc = 0) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

std::vector<std::byte> Noise(size_t bytes) {
  std::vector<std::byte> noise(bytes);
  for (size_t i = 0; i < bytes; ++i) noise[i] = static_cast<std::byte>((i + 1) * 0x9E3779B97F4A7C15U >> 40);
  return noise;
}

TEST(Crc32c, IsTheDefinitionsAtEveryLengthAndAlignment) {
  const std::vector<std::byte> data = Noise(320);
  for (size_t begin = 0; begin < 16; ++begin) {
    for (size_t length = 0; length <= 300; ++length) {
      const auto bytes = std::span(data).subspan(begin, length);
      ASSERT_EQ(Crc32c(bytes), Bitwise(bytes)) << begin << " + " << length;
    }
  }
}

TEST(Crc32c, IsTheDefinitionsWhereStretchesEnd) {
  const std::vector<std::byte> data = Noise(100'000);
  for (const size_t length : {767, 768, 769, 1535, 1536, 8192, 24'575, 24'576, 24'577, 25'344, 49'152, 99'990}) {
    for (const size_t begin : {0, 3}) {
      const auto bytes = std::span(data).subspan(begin, length);
      ASSERT_EQ(Crc32c(bytes), Bitwise(bytes)) << begin << " + " << length;
      const auto rest = std::span(data).subspan(begin + length);
      ASSERT_EQ(Crc32c(rest, Crc32c(bytes)), Bitwise(rest, Bitwise(bytes))) << begin << " + " << length;
    }
  }
}

}  // namespace
}  // namespace everlong
