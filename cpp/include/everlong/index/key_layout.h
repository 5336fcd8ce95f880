// How the keys of a page lie in memory, and what their codes stand for. Compiled by host C++, hipcc and nvcc, so that
// every device reads the same keys.
#pragma once

#include <cstdint>

#include "everlong/kv/element.h"

namespace everlong::index {

// How the numbers of a key are kept. Those in bytes are codes times a scale of their page, key head and dimension: its
// largest magnitude there over the largest code, so that a page is kept the same whatever comes before or after it.
// What comes back is code * scale rounded to bf16, so that all kinds are scored alike. Pages of an archive in e4m3 have
// such scales themselves (kv/payload.h): of them kE4M3 keeps what kBf16 does, but for a tie in rounding here and there,
// since a scale comes back to its last bit or beside it.
enum class KeyStorage : uint8_t { kBf16, kInt8, kE4M3 };

// A tile in bf16 is [pairs][32] words of 32 bits, one a token: the low half is dimension 2 * pair, the high half the
// next one (0 past an odd D). That is what a dot product of bf16 pairs takes; elsewhere a shift and a mask make floats
// of them. A tile in bytes is [quads][32] words: from the lowest byte on the dimensions 0, 2, 1 and 3 of four, so that
// bytes 0 and 2 lie where the halves of the first pair do, and bytes 1 and 3 are the second pair. A page's last tile is
// filled with zeros.
inline constexpr int32_t kTileTokens = 32;
EVERLONG_HD constexpr int32_t PairsOf(int32_t head_dim) { return (head_dim + 1) / 2; }
EVERLONG_HD constexpr int32_t QuadsOf(int32_t head_dim) { return (head_dim + 3) / 4; }
// For any number of tokens >= 0: a damaged file may say the largest.
EVERLONG_HD constexpr int32_t TilesOf(int32_t tokens) {
  return tokens / kTileTokens + (tokens % kTileTokens == 0 ? 0 : 1);
}

// Query rows that are scored together.
inline constexpr int32_t kBlockRows = 8;

// Where a dimension's code lies in its tile.
struct CodePlace {
  int32_t row = 0;  // of words
  uint32_t shift = 0;
};
EVERLONG_HD constexpr CodePlace PlaceOf(KeyStorage storage, int32_t dimension) {
  const auto half = static_cast<uint32_t>(dimension % 2 * 16);
  if (storage == KeyStorage::kBf16) return {dimension / 2, half};
  return {dimension / 4, half + static_cast<uint32_t>(dimension % 4 / 2 * 8)};
}

// The bits of a code, at a shift of 0.
EVERLONG_HD constexpr uint32_t CodeMask(KeyStorage storage) { return storage == KeyStorage::kBf16 ? 0xFFFFU : 0xFFU; }

// The number that a code stands for, a bf16. The scale is not read in bf16.
EVERLONG_HD inline float DecodeKey(KeyStorage storage, uint32_t code, float scale) {
  if (storage == KeyStorage::kBf16) return kv::BFloat16ToFloat(static_cast<uint16_t>(code));
  const auto byte = static_cast<uint8_t>(code);
  const float value =
      storage == KeyStorage::kInt8 ? static_cast<float>(static_cast<int8_t>(byte)) : kv::E4M3ToFloat(byte);
  return kv::BFloat16ToFloat(kv::FloatToBFloat16(value * scale));
}

// The words of one key head of a page: its scales, then its tiles. A page has its key heads one after the other.
struct KeyLayout {
  KeyStorage storage = KeyStorage::kBf16;
  int32_t head_dim = 0;

  // Rows of words of a tile: [rows][kTileTokens].
  [[nodiscard]] EVERLONG_HD constexpr int32_t TileRows() const {
    return storage == KeyStorage::kBf16 ? PairsOf(head_dim) : QuadsOf(head_dim);
  }
  [[nodiscard]] EVERLONG_HD constexpr int64_t TileWords() const { return int64_t{TileRows()} * kTileTokens; }
  // The bits of the fp32 scale of every dimension, for the byte kinds: [D filled up with zeros to a multiple of 16], so
  // that tiles begin where a cache line does if scales do.
  [[nodiscard]] EVERLONG_HD constexpr int64_t ScaleWords() const {
    return storage == KeyStorage::kBf16 ? 0 : (head_dim + 15) / 16 * 16;
  }
  [[nodiscard]] EVERLONG_HD constexpr int64_t HeadWords(int32_t tokens) const {
    return ScaleWords() + TilesOf(tokens) * TileWords();
  }
};

}  // namespace everlong::index
