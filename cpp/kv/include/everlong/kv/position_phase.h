// The cos and sin of a position's angle, computed the same way wherever a key is rotated. Host C++, hipcc and nvcc
// compile this header. The bits are those of the platform's fp64 cos and sin.
//
// An angle is the sum of two: that of a multiple of kPositionRun, and that of the rest. So a run of positions computes
// cos and sin only once in kPositionRun. All of it is in fp64: at position 10^6 an fp32 angle is wrong by 0.03 rad.
#pragma once

#include <cmath>
#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::kv {

inline constexpr int64_t kPositionRun = 16;

struct AnglePoint {
  double c;
  double s;
};

// `scaled` is the attention scaling m for the rest of a position, and 1 for the multiple.
EVERLONG_HD inline AnglePoint PointAt(int64_t position, double frequency, double scaled) {
  const double angle = static_cast<double>(position) * frequency;
  return {::cos(angle) * scaled, ::sin(angle) * scaled};
}

EVERLONG_HD inline Phase SumOfAngles(AnglePoint a, AnglePoint b) {
  return {static_cast<float>(a.c * b.c - a.s * b.s), static_cast<float>(a.s * b.c + a.c * b.s)};
}

// Return how far `position` lies above a multiple of kPositionRun.
EVERLONG_HD inline int64_t RestOfPosition(int64_t position) {
  return (position % kPositionRun + kPositionRun) % kPositionRun;
}

// Return the phase of one pair at `position`, given its frequency in radians a position and the attention scaling m.
EVERLONG_HD inline Phase PhaseAt(int64_t position, double frequency, double attention_scaling) {
  const int64_t rest = RestOfPosition(position);
  return SumOfAngles(PointAt(position - rest, frequency, 1.0), PointAt(rest, frequency, attention_scaling));
}

}  // namespace everlong::kv
