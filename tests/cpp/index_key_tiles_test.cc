#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <new>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../../cpp/index/heads_kernel.h"
#include "../../cpp/index/key_tiles.h"
#include "base_allocation_failures.h"
#include "everlong/index/heads.h"

namespace everlong::index {
namespace {

constexpr double kLeastScale = 0x1p-110;  // what is below its steps is kept as 0

// Keys [key_heads, tokens, D] whose channels have magnitudes of their own, from 2^-140 to the end of bf16; some are 0.
std::vector<float> UnlikeChannels(int32_t key_heads, int32_t tokens, int32_t dim, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-140, 124);
  std::vector<float> keys;
  for (int32_t head = 0; head < key_heads; ++head) {
    std::vector<double> magnitudes(static_cast<size_t>(dim));
    for (double& magnitude : magnitudes) magnitude = random() % 5 == 0 ? 0.0 : std::ldexp(1.0, exponent(random));
    for (int32_t token = 0; token < tokens; ++token) {
      for (const double magnitude : magnitudes) {
        keys.push_back(static_cast<float>(magnitude * std::clamp(normal(random), -7.0F, 7.0F)));
      }
    }
  }
  return keys;
}

class KeyTilesTest : public testing::TestWithParam<KeyStorage> {
 protected:
  // The largest distance between `key` and what is kept of it, in a channel of the given largest magnitude.
  [[nodiscard]] static double HalfAStep(double key, double largest) {
    const double rounding = std::ldexp(std::abs(key), -8);  // to bf16, half a step and what the step itself may add
    if (GetParam() == KeyStorage::kBf16) return rounding + 0x1p-134;
    const double scale = std::max(largest / (GetParam() == KeyStorage::kInt8 ? 127 : 448), kLeastScale) * (1 + 0x1p-20);
    if (GetParam() == KeyStorage::kInt8) return scale / 2 * (1 + 0x1p-7) + rounding;
    const double step = std::ldexp(1.0, std::max(std::ilogb(std::max(std::abs(key) / scale, 0x1p-60)), -6) - 3);
    return scale * step / 2 * (1 + 0x1p-7) + rounding;
  }
};

TEST_P(KeyTilesTest, KeepsKeysWithinHalfAStep) {
  std::mt19937 random(50);
  for (const int32_t dim : {1, 2, 3, 4, 5, 6, 7, 13, 16, 17, 64}) {
    for (const int32_t tokens : {1, 2, 31, 32, 33, 64, 70}) {
      SCOPED_TRACE(testing::Message() << "D " << dim << ", " << tokens << " tokens");
      constexpr int32_t kKeyHeads = 3;
      KeyTiles tiles(kKeyHeads, dim, GetParam());
      const std::vector<float> before = UnlikeChannels(kKeyHeads, 40, dim, random);
      const std::vector<float> keys = UnlikeChannels(kKeyHeads, tokens, dim, random);
      ASSERT_TRUE(tiles.Add(before, 40).ok());
      ASSERT_TRUE(tiles.Add(keys, tokens).ok());
      const auto head_size = static_cast<size_t>(tokens * dim);
      std::vector<float> kept(head_size);
      for (int32_t head = 0; head < kKeyHeads; ++head) {
        tiles.Decode(1, head, kept);
        const std::span<const float> of_head =
            std::span(keys).subspan(static_cast<size_t>(head) * head_size, head_size);
        for (size_t at = 0; at < head_size; ++at) {
          double largest = 0;
          for (size_t other = at % static_cast<size_t>(dim); other < head_size; other += static_cast<size_t>(dim)) {
            largest = std::max<double>(largest, std::abs(of_head[other]));
          }
          ASSERT_NEAR(kept[at], of_head[at], HalfAStep(of_head[at], largest)) << "largest " << largest;
          if (of_head[at] == 0) {
            ASSERT_EQ(kept[at], 0.0F);
          }
        }
      }
    }
  }
}

TEST_P(KeyTilesTest, WithoutMemoryForASlabItStaysAsItWas) {
  std::mt19937 random(53);
  constexpr int32_t kDim = 16;
  const std::vector<float> small = UnlikeChannels(1, 1, kDim, random);
  // More than a slab that holds one token, and what would fit into the slab of the former.
  const std::vector<float> large = UnlikeChannels(1, 1 << 14, kDim, random);
  const std::vector<float> half = UnlikeChannels(1, 1 << 13, kDim, random);
  KeyTiles tiles(1, kDim, GetParam());
  KeyTiles expected(1, kDim, GetParam());
  ASSERT_TRUE(tiles.Add(small, 1).ok());
  ASSERT_TRUE(expected.Add(small, 1).ok());
  {
    const AlignedArraysFail no_slab;
    EXPECT_THROW(static_cast<void>(tiles.Add(large, 1 << 14)), std::bad_alloc);
  }
  EXPECT_EQ(tiles.pages(), 1);
  ASSERT_TRUE(tiles.Add(half, 1 << 13).ok());
  ASSERT_TRUE(expected.Add(half, 1 << 13).ok());
  for (int32_t page = 0; page < 2; ++page) EXPECT_TRUE(std::ranges::equal(tiles.words(page), expected.words(page)));
  EXPECT_EQ(tiles.bytes(), expected.bytes());
}

TEST_P(KeyTilesTest, EveryKernelExpandsToWhatIsKept) {
  if (GetParam() == KeyStorage::kBf16) return;  // nothing to expand
  std::mt19937 random(51);
  for (const int32_t dim : {1, 2, 3, 4, 5, 6, 7, 16, 17, 33, 64}) {
    for (const int32_t tokens : {1, 32, 70}) {
      SCOPED_TRACE(testing::Message() << "D " << dim << ", " << tokens << " tokens");
      KeyTiles tiles(1, dim, GetParam());
      const std::vector<float> keys = UnlikeChannels(1, tokens, dim, random);
      ASSERT_TRUE(tiles.Add(keys, tokens).ok());
      std::vector<float> kept(keys.size());
      tiles.Decode(0, 0, kept);
      const int32_t pairs = PairsOf(dim);
      // In bf16 already: laid out as the other kernels want it.
      KeyTiles expected(1, dim);
      ASSERT_TRUE(expected.Add(kept, tokens).ok());
      const auto count = static_cast<size_t>(tiles.tiles(0) * pairs * kTileTokens);
      const std::span<const uint32_t> words(expected.keys(0, 0), count);
      for (int32_t level = 0; level < SupportedHeadsKernels().count; ++level) {
        const HeadsKernel& kernel = SupportedHeadsKernels().kernels[level];
        std::vector<uint32_t> expanded(count + 1, 0xDEADU);
        (GetParam() == KeyStorage::kInt8 ? kernel.expand_int8 : kernel.expand_e4m3)(
            {tiles.scales(0, 0), tiles.keys(0, 0), tiles.tiles(0), pairs}, expanded.data());
        EXPECT_TRUE(std::equal(words.begin(), words.end(), expanded.begin())) << "kernel " << level;
        EXPECT_EQ(expanded.back(), 0xDEADU) << "kernel " << level;
      }
    }
  }
}

TEST_P(KeyTilesTest, WordsCarryAPageOver) {
  std::mt19937 random(52);
  KeyTiles tiles(2, 13, GetParam());
  KeyTiles copy(2, 13, GetParam());
  for (const int32_t tokens : {70, 1, 32}) {
    ASSERT_TRUE(tiles.Add(UnlikeChannels(2, tokens, 13, random), tokens).ok());
  }
  for (const int32_t page : {2, 0, 1}) {
    EXPECT_EQ(tiles.words(page).size(), tiles.PageWords(tiles.tokens(page)));
    EXPECT_EQ(std::bit_cast<uintptr_t>(tiles.keys(page, 1)) % 64, 0U);
    std::vector<uint32_t> words(tiles.words(page).begin(), tiles.words(page).end());
    copy.AddMapped(words, tiles.tokens(page));
    const auto size = static_cast<size_t>(tiles.tokens(page) * 13);
    for (const int32_t head : {0, 1}) {
      std::vector<float> kept(size);
      std::vector<float> copied(size);
      tiles.Decode(page, head, kept);
      copy.Decode(copy.pages() - 1, head, copied);
      EXPECT_EQ(kept, copied);
    }
  }
}

// What is mapped belongs to its file.
TEST_P(KeyTilesTest, AMappedPageIsForgottenWithoutATouch) {
  std::mt19937 random(54);
  KeyTiles tiles(2, 13, GetParam());
  ASSERT_TRUE(tiles.Add(UnlikeChannels(2, 40, 13, random), 40).ok());
  const std::vector<uint32_t> words(tiles.words(0).begin(), tiles.words(0).end());
  KeyTiles mapped(2, 13, GetParam());
  mapped.AddMapped(words, 40);
  const int64_t bytes = mapped.bytes();
  mapped.Forget(0);
  EXPECT_EQ(mapped.tokens(0), 0);
  EXPECT_TRUE(std::ranges::equal(words, tiles.words(0)));
  ASSERT_TRUE(mapped.Add(UnlikeChannels(2, 40, 13, random), 40).ok());
  EXPECT_TRUE(std::ranges::equal(words, tiles.words(0))) << "its room is not used again";
  EXPECT_GT(mapped.bytes(), bytes);
}

TEST_P(KeyTilesTest, TheLongestKeyIsThatWhichIsKept) {
  std::mt19937 random(53);
  KeyTiles tiles(2, 7, GetParam());
  std::vector<double> longest(2, 0.0);
  for (int32_t page = 0; page < 5; ++page) {
    ASSERT_TRUE(tiles.Add(UnlikeChannels(2, 20, 7, random), 20).ok());
    std::vector<float> kept(size_t{20} * 7);
    for (const int32_t head : {0, 1}) {
      tiles.Decode(page, head, kept);
      for (size_t token = 0; token < 20; ++token) {
        double square = 0;
        for (size_t i = 0; i < 7; ++i) square += static_cast<double>(kept[token * 7 + i]) * kept[token * 7 + i];
        longest[static_cast<size_t>(head)] = std::max(longest[static_cast<size_t>(head)], std::sqrt(square));
      }
    }
    for (const int32_t head : {0, 1}) EXPECT_DOUBLE_EQ(tiles.longest(head), longest[static_cast<size_t>(head)]);
  }
}

TEST_P(KeyTilesTest, TheLargestKeysStayFinite) {
  KeyTiles tiles(1, 2, GetParam());
  // The last floats that round to a finite bf16.
  const float largest = std::nextafter(0x1.FFp127F, 0.0F);
  ASSERT_TRUE(tiles.Add(std::vector<float>{largest, -largest, 0x1.FEp127F, 1}, 2).ok());
  std::vector<float> kept(4);
  tiles.Decode(0, 0, kept);
  EXPECT_EQ(kept[0], 0x1.FEp127F);
  EXPECT_EQ(kept[1], -0x1.FEp127F);
  EXPECT_EQ(kept[2], 0x1.FEp127F);
}

INSTANTIATE_TEST_SUITE_P(Storages, KeyTilesTest, testing::ValuesIn(kKeyStorages),
                         [](const auto& parameter) { return std::string(NameOf(parameter.param)); });

TEST(KeyTiles, OfAnE4M3ArchiveTheSameIsKeptAsInBf16) {
  // As kv/payload.h has it: a code of 448 in every channel, times an fp32 scale.
  std::mt19937 random(54);
  std::uniform_real_distribution<float> exponent(-12, 4);
  constexpr size_t kTokens = 64;
  constexpr size_t kDim = 64;
  std::vector<float> keys(kTokens * kDim);
  for (size_t i = 0; i < kDim; ++i) {
    const float scale = std::exp2(exponent(random));
    for (size_t token = 0; token < kTokens; ++token) {
      // A sign, and a number of 4 significant bits from 2^-6 to 448.
      const auto significand = static_cast<float>(8 + random() % 7);
      const float code = token == 0 ? 448.0F : std::ldexp(significand, static_cast<int>(random() % 15) - 9);
      keys[token * kDim + i] = (random() % 2 == 0 ? 1.0F : -1.0F) * code * scale;
    }
  }
  KeyTiles bytes(1, kDim, KeyStorage::kE4M3);
  KeyTiles halves(1, kDim);
  ASSERT_TRUE(bytes.Add(keys, kTokens).ok());
  ASSERT_TRUE(halves.Add(keys, kTokens).ok());
  std::vector<float> of_bytes(keys.size());
  std::vector<float> of_halves(keys.size());
  bytes.Decode(0, 0, of_bytes);
  halves.Decode(0, 0, of_halves);
  // The scale comes back to the last bit or beside it, where a number in the middle of two may go either way.
  int other = 0;
  for (size_t at = 0; at < keys.size(); ++at) {
    EXPECT_NEAR(of_bytes[at], of_halves[at], std::ldexp(std::abs(of_halves[at]), -7));
    other += of_bytes[at] != of_halves[at] ? 1 : 0;
  }
  EXPECT_LE(other, 4);
}

TEST(KeyTiles, BytesTakeHalfOfBf16AndTheScales) {
  for (const KeyStorage storage : {KeyStorage::kInt8, KeyStorage::kE4M3}) {
    const KeyTiles tiles(2, 64, storage);
    EXPECT_EQ(tiles.PageWords(64), (size_t{2} * 64 * 64 + size_t{2} * 64 * 4) / 4);
    EXPECT_EQ(tiles.PageWords(1), (size_t{2} * 32 * 64 + size_t{2} * 64 * 4) / 4);
  }
  EXPECT_EQ(KeyTiles(2, 64).PageWords(64), size_t{2} * 64 * 64 / 2);
}

}  // namespace
}  // namespace everlong::index
