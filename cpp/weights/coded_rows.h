// Rows of x in codes of 8 bits, as the kernels of a product read them: step 1 of block_matrix.h.
#pragma once

#include <cstdint>

namespace everlong::weights {

inline constexpr int32_t kGroup = 32;      // numbers of x that share a scale
inline constexpr int32_t kSpanGroups = 8;  // groups of a span
inline constexpr int32_t kSpan = kGroup * kSpanGroups;

// A span of one row of x. The last one of a row may be shorter: the rest of it is never read.
struct alignas(64) CodedSpan {
  int8_t codes[kSpan];       // -127 to 127
  int8_t fine_codes[kSpan];  // of fine groups: -127 to 127
  float scale[kSpanGroups];  // a number is scale * code or, in a fine group, scale * (kFineUnit * code + fine code)
  float scaled_sum[kSpanGroups];  // the sum of a group's numbers
  // What a dot product begins with, so that codes of w may be stored `offset` too large: -offset * the sum of 16 codes
  // or, where a group of w is 32 elements, of 32 at every second place. Of a fine group both codes count.
  int32_t start[2 * kSpanGroups];
  uint32_t fine;  // bit g: group g is fine
};

inline constexpr int32_t kLargestCode = 127;
inline constexpr int32_t kFineUnit = 2 * kLargestCode + 1;
inline constexpr int32_t kLargestFine = kFineUnit * kLargestCode + kLargestCode;
// A group is fine if the square of its largest magnitude is above so many times the row's mean of these squares.
inline constexpr double kFineAbove = 1.5;

inline int64_t SpansOf(int64_t columns) { return (columns + kSpan - 1) / kSpan; }

// How a format's codes are stored for the kernels.
struct CodeTraits {
  int32_t offset = 0;       // what is added to a code, so that it is not negative
  bool has_halves = false;  // 16 elements share a scale, not 32
  bool operator==(const CodeTraits&) const = default;
};

}  // namespace everlong::weights
