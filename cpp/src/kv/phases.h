// cos and sin of many positions at once, computed once and then read by every layer and head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/cache_lines.h"
#include "everlong/kv/position_phase.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// One number a pair and token: [tokens, half] fp32, attention scaling included.
struct Phases {
  CacheLineVector<float> cos;
  CacheLineVector<float> sin;
};

// InversePhase (kv/element.h) of `count` numbers.
Phases InversePhases(const float* cos, const float* sin, int64_t count);

// RopeTable::CosSin for runs of positions: the same bits, with the cos and sin of every kPositionRun-th position only.
class PhaseWriter {
 public:
  explicit PhaseWriter(const RopeTable& rope);

  // cos, sin [count, half] of positions [first, first + count). Thread-safe.
  void Write(int64_t first, int64_t count, float* cos, float* sin) const;

  // The same for positions in any order; parallel.
  [[nodiscard]] Phases Of(std::span<const int64_t> positions) const;

 private:
  const RopeTable& rope_;
  std::vector<AnglePoint> rests_;  // [kPositionRun, half], attention scaling included
};

}  // namespace everlong::kv
