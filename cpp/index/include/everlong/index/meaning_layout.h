// How the vectors of the part "meaning" and the rows of a question lie in memory. Host C++, hipcc and nvcc compile this
// header, so that every device reads the same vectors.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::index {

// The vectors of a tile. A word holds four of their numbers.
inline constexpr int32_t kTileVectors = 16;
// Question tokens that a kernel takes at a time.
inline constexpr int32_t kMeaningRows = 16;

EVERLONG_HD constexpr int32_t MeaningQuadsOf(int32_t dimension) { return (dimension + 3) / 4; }
// A tile is [quads][kTileVectors] words of four numbers, each with 128 added, the first in the lowest byte. Then, for
// every vector, follows 1 over its length as fp32, or 0 for a vector of zeros.
EVERLONG_HD constexpr int64_t MeaningTileWords(int32_t quads) { return int64_t{quads + 1} * kTileVectors; }

}  // namespace everlong::index
