// How the vectors of the part "meaning" lie in memory, and the rows of a question. Compiled by host C++, hipcc and
// nvcc, so that every device reads the same vectors.
#pragma once

#include <cstdint>

#include "everlong/kv/element.h"

namespace everlong::index {

// Vectors lie in tiles of so many, four of their numbers a word.
inline constexpr int32_t kTileVectors = 16;
// Question tokens that a kernel takes at a time.
inline constexpr int32_t kMeaningRows = 16;

EVERLONG_HD constexpr int32_t MeaningQuadsOf(int32_t dimension) { return (dimension + 3) / 4; }
// A tile is [quads][kTileVectors] words of four numbers, each with 128 added, the first in the lowest byte; and then
// for every vector fp32 1 over its length, 0 for zeros.
EVERLONG_HD constexpr int64_t MeaningTileWords(int32_t quads) { return int64_t{quads + 1} * kTileVectors; }

}  // namespace everlong::index
