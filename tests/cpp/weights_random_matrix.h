// Matrices in blocks of random codes, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "everlong/base/element.h"
#include "everlong/weights/block_matrix.h"

namespace everlong::weights {

inline constexpr BlockFormat kFormats[] = {BlockFormat::kQ4_0, BlockFormat::kQ4_1, BlockFormat::kQ5_0,
                                           BlockFormat::kQ5_1, BlockFormat::kQ8_0, BlockFormat::kQ4_K,
                                           BlockFormat::kQ5_K, BlockFormat::kQ6_K};

// Return where the scales of a block lie that are binary16.
inline std::vector<int32_t> HalvesOf(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_1:
    case BlockFormat::kQ5_1:
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K:
      return {0, 2};
    case BlockFormat::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

struct OwnedMatrix {
  std::vector<std::byte> bytes;
  BlockMatrix matrix;
};

// Make a matrix of any codes, whose scales are numbers of either sign.
inline OwnedMatrix RandomMatrix(BlockFormat format, int64_t rows, int64_t columns, std::mt19937& random) {
  const BlockShape shape = ShapeOf(format);
  const int64_t blocks = rows * columns / shape.elements;
  OwnedMatrix owned;
  owned.bytes.resize(static_cast<size_t>(blocks * shape.bytes));
  for (std::byte& byte : owned.bytes) byte = static_cast<std::byte>(random());
  std::normal_distribution<float> scale(0.0F, 0.01F);
  for (int64_t block = 0; block < blocks; ++block) {
    for (const int32_t at : HalvesOf(format)) {
      const uint16_t half = FloatToFloat16(scale(random));
      owned.bytes[static_cast<size_t>(block * shape.bytes + at)] = static_cast<std::byte>(half);
      owned.bytes[static_cast<size_t>(block * shape.bytes + at + 1)] = static_cast<std::byte>(half >> 8);
    }
  }
  owned.matrix = {format, rows, columns, owned.bytes};
  return owned;
}

}  // namespace everlong::weights
