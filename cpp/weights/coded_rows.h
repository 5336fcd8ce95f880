// Rows of x in codes of 8 bits, as the kernels of a product read them: step 1 of block_matrix.h.
#pragma once

#include <cstdint>

namespace everlong::weights {

inline constexpr int32_t kGroup = 32;        // numbers of x that share a scale
inline constexpr int32_t kSpanGroups = 8;    // groups of a span
inline constexpr int32_t kSpan = kGroup * kSpanGroups;

// A span of one row of x. The last one of a row may be shorter: the rest of it is never read.
struct alignas(64) CodedSpan {
  int8_t codes[kSpan];
  float scale[kSpanGroups];
  float scaled_sum[kSpanGroups];  // scale * the sum of the group's codes
  // What a dot product begins with, so that codes of w may be stored `offset` too large: -offset * the sum of 16 codes
  // or, where a group of w is 32 elements, of 32 at every second place.
  int32_t start[2 * kSpanGroups];
};

inline int64_t SpansOf(int64_t columns) { return (columns + kSpan - 1) / kSpan; }

// How a format's codes are stored for the kernels.
struct CodeTraits {
  int32_t offset = 0;       // what is added to a code, so that it is not negative
  bool has_halves = false;  // 16 elements share a scale, not 32
};

}  // namespace everlong::weights
