// The formats in which GGUF files keep matrices, and the arithmetic of one element. A row of a matrix is whole blocks,
// and a block is its scales and the codes of its elements. Host C++, hipcc and nvcc compile this header.
//
// An element is code * scale + least. Formats without a least number have signed codes. K formats have blocks of 256
// elements, whose groups of 32 (of 16 in Q6_K) have scales of their own: 6 or 8 bits, in units of the block's scale.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::weights {

// The numbers that GGUF files have for them.
enum class BlockFormat : int32_t {
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
};

// Elements of a block, and its bytes.
struct BlockShape {
  int32_t elements = 0;
  int32_t bytes = 0;
};

// Return the shape of a format's blocks; zeros for a number that is no format of this list.
EVERLONG_HD constexpr BlockShape ShapeOf(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return {32, 18};
    case BlockFormat::kQ4_1:
      return {32, 20};
    case BlockFormat::kQ5_0:
      return {32, 22};
    case BlockFormat::kQ5_1:
      return {32, 24};
    case BlockFormat::kQ8_0:
      return {32, 34};
    case BlockFormat::kQ4_K:
      return {256, 144};
    case BlockFormat::kQ5_K:
      return {256, 176};
    case BlockFormat::kQ6_K:
      return {256, 210};
  }
  return {};
}

EVERLONG_HD inline float HalfAt(const uint8_t* bytes) {
  return Float16ToFloat(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
}

// Return half `upper` of a byte: its low or its high four bits.
EVERLONG_HD inline int32_t Nibble(uint8_t byte, bool upper) { return upper ? byte >> 4 : byte & 15; }

// Return the scale (6 bits) of group 0 to 7 of a block of Q4_K or Q5_K, from its 12 bytes; with `least` the group's
// least number. Bytes 0 to 3 and 4 to 7 have those of groups 0 to 3. Their upper two bits and bytes 8 to 11 have the
// other groups'.
EVERLONG_HD inline int32_t SixBits(const uint8_t* packed, int32_t group, bool least) {
  const int32_t first = least ? 4 : 0;
  if (group < 4) return packed[first + group] & 63;
  return Nibble(packed[4 + group], least) | packed[first + group - 4] >> 6 << 4;
}

// Decode element `i` of a block, as fp32. The roundings are those of ggml: a group's scale and least number are exact.
EVERLONG_HD inline float DecodeElement(BlockFormat format, const uint8_t* block, int32_t i) {
  // Blocks of 32: the first half of the elements has the low four bits of the bytes, the second the high ones.
  const bool upper = i >= 16;
  switch (format) {
    case BlockFormat::kQ4_0:
      return HalfAt(block) * static_cast<float>(Nibble(block[2 + i % 16], upper) - 8);
    case BlockFormat::kQ4_1:
      return HalfAt(block) * static_cast<float>(Nibble(block[4 + i % 16], upper)) + HalfAt(block + 2);
    case BlockFormat::kQ5_0: {
      const int32_t fifth = block[2 + i / 8] >> i % 8 & 1;
      return HalfAt(block) * static_cast<float>((Nibble(block[6 + i % 16], upper) | fifth << 4) - 16);
    }
    case BlockFormat::kQ5_1: {
      const int32_t fifth = block[4 + i / 8] >> i % 8 & 1;
      return HalfAt(block) * static_cast<float>(Nibble(block[8 + i % 16], upper) | fifth << 4) + HalfAt(block + 2);
    }
    case BlockFormat::kQ8_0:
      return HalfAt(block) * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K: {
      const int32_t group = i / 32;
      const bool five = format == BlockFormat::kQ5_K;
      const uint8_t* const codes = block + (five ? 48 : 16);
      const int32_t low = Nibble(codes[group / 2 * 32 + i % 32], group % 2 == 1);
      const int32_t fifth = five ? block[16 + i % 32] >> group & 1 : 0;
      const float scale = HalfAt(block) * static_cast<float>(SixBits(block + 4, group, false));
      const float least = HalfAt(block + 2) * static_cast<float>(SixBits(block + 4, group, true));
      return scale * static_cast<float>(low | fifth << 4) - least;
    }
    case BlockFormat::kQ6_K: {
      const int32_t half = i / 128;
      const int32_t quarter = i % 128 / 32;
      const int32_t low = Nibble(block[half * 64 + quarter % 2 * 32 + i % 32], quarter >= 2);
      const int32_t upper_bits = block[128 + half * 32 + i % 32] >> 2 * quarter & 3;
      const float scale = HalfAt(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
      return scale * static_cast<float>((low | upper_bits << 4) - 32);
    }
  }
  return 0.0F;
}

}  // namespace everlong::weights
