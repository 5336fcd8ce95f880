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

}  // namespace
}  // namespace everlong
