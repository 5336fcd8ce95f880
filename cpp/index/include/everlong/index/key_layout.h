// How the keys of a page lie in memory, and what their codes mean. Host C++, hipcc and nvcc compile this header, so
// that every device reads the same keys.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::index {

// How the numbers of a key are kept. kInt8 and kE4M3 keep bytes: codes times a scale of their page, key head and
// dimension. The scale is the largest magnitude there over the largest code, so other pages do not change how a page is
// kept. A decoded number is code * scale rounded to bf16, so all kinds are scored alike. An archive in e4m3 has such
// scales itself (kv/payload.h). Of its pages kE4M3 keeps the same numbers as kBf16, apart from a few ties in rounding:
// a scale comes back exactly, or off by its last bit.
enum class KeyStorage : uint8_t { kBf16, kInt8, kE4M3 };

// A tile in bf16 is [pairs][32] words of 32 bits, one word a token. The low half is dimension 2 * pair, the high half
// the next one (0 past an odd D). A dot product of bf16 pairs takes that layout. Elsewhere a shift and a mask turn it
// into floats. A tile in bytes is [quads][32] words. From the lowest byte, a word holds dimensions 0, 2, 1 and 3 of
// four. So bytes 0 and 2 lie where the halves of the first pair do. Bytes 1 and 3 are the second pair. A page's last
// tile is padded with zeros.
inline constexpr int32_t kTileTokens = 32;
EVERLONG_HD constexpr int32_t PairsOf(int32_t head_dim) { return (head_dim + 1) / 2; }
EVERLONG_HD constexpr int32_t QuadsOf(int32_t head_dim) { return (head_dim + 3) / 4; }
// It must hold for any number of tokens >= 0: a damaged file may give the largest.
EVERLONG_HD constexpr int32_t TilesOf(int32_t tokens) {
  return tokens / kTileTokens + (tokens % kTileTokens == 0 ? 0 : 1);
}

// Query rows that are scored together.
inline constexpr int32_t kBlockRows = 8;

// The place of a dimension's code in its tile.
struct CodePlace {
  int32_t row = 0;  // of words
  uint32_t shift = 0;
};
EVERLONG_HD constexpr CodePlace PlaceOf(KeyStorage storage, int32_t dimension) {
  const auto half = static_cast<uint32_t>(dimension % 2 * 16);
  if (storage == KeyStorage::kBf16) return {dimension / 2, half};
  return {dimension / 4, half + static_cast<uint32_t>(dimension % 4 / 2 * 8)};
}

// Return the mask of a code's bits, at a shift of 0.
EVERLONG_HD constexpr uint32_t CodeMask(KeyStorage storage) { return storage == KeyStorage::kBf16 ? 0xFFFFU : 0xFFU; }

// Return the number of a code, a bf16. kBf16 does not read the scale.
EVERLONG_HD inline float DecodeKey(KeyStorage storage, uint32_t code, float scale) {
  if (storage == KeyStorage::kBf16) return BFloat16ToFloat(static_cast<uint16_t>(code));
  const auto byte = static_cast<uint8_t>(code);
  const float value = storage == KeyStorage::kInt8 ? static_cast<float>(static_cast<int8_t>(byte)) : E4M3ToFloat(byte);
  return BFloat16ToFloat(FloatToBFloat16(value * scale));
}

// The words of one key head of a page: its scales, then its tiles. A page has its key heads one after the other.
struct KeyLayout {
  KeyStorage storage = KeyStorage::kBf16;
  int32_t head_dim = 0;

  // Return the rows of words of a tile: [rows][kTileTokens].
  [[nodiscard]] EVERLONG_HD constexpr int32_t TileRows() const {
    return storage == KeyStorage::kBf16 ? PairsOf(head_dim) : QuadsOf(head_dim);
  }
  [[nodiscard]] EVERLONG_HD constexpr int64_t TileWords() const { return int64_t{TileRows()} * kTileTokens; }
  // Return the words of the scales, which only the byte kinds have: one fp32 for every dimension, padded with zeros to
  // a multiple of 16. So if the scales begin at a cache line, the tiles do too.
  [[nodiscard]] EVERLONG_HD constexpr int64_t ScaleWords() const {
    return storage == KeyStorage::kBf16 ? 0 : (head_dim + 15) / 16 * 16;
  }
  [[nodiscard]] EVERLONG_HD constexpr int64_t HeadWords(int32_t tokens) const {
    return ScaleWords() + TilesOf(tokens) * TileWords();
  }
};

}  // namespace everlong::index
