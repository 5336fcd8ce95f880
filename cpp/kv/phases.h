// The cos and sin of many positions, computed once for every layer and head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/cache_lines.h"
#include "everlong/kv/position_phase.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv {

// One number a pair and token: [tokens, half] fp32, with the attention scaling.
struct Phases {
  CacheLineVector<float> cos;
  CacheLineVector<float> sin;
};

// Return InversePhase (base/element.h) of `count` numbers.
Phases InversePhases(const float* cos, const float* sin, int64_t count);

// RopeTable::CosSin for runs of positions: the same bits, from cos and sin of only every kPositionRun-th position.
class PhaseWriter {
 public:
  explicit PhaseWriter(const RopeTable& rope);

  // Write cos, sin [count, half] of positions [first, first + count). Thread-safe.
  void Write(int64_t first, int64_t count, float* cos, float* sin) const;

  // Return the same for positions in any order, computed in parallel.
  [[nodiscard]] Phases Of(std::span<const int64_t> positions) const;

 private:
  const RopeTable& rope_;
  std::vector<AnglePoint> rests_;  // [kPositionRun, half], with the attention scaling
};

}  // namespace everlong::kv
