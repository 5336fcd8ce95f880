#include "phases.h"

#include <algorithm>

#include "everlong/base/element.h"
#include "everlong/base/parallel_for.h"

namespace everlong::kv {
namespace {

constexpr int64_t kGrainNumbers = 16384;
constexpr int64_t kGrainPositions = 128;

}  // namespace

Phases InversePhases(const float* cos, const float* sin, int64_t count) {
  Phases inverse{CacheLineVector<float>(static_cast<size_t>(count)),
                 CacheLineVector<float>(static_cast<size_t>(count))};
  ParallelFor(0, count, kGrainNumbers, [&](int64_t begin, int64_t end) {
    float* const inverse_cos = inverse.cos.data();
    float* const inverse_sin = inverse.sin.data();
    for (int64_t i = begin; i < end; ++i) {
      const Phase phase = InversePhase({cos[i], sin[i]});
      inverse_cos[i] = phase.c;
      inverse_sin[i] = phase.s;
    }
  });
  return inverse;
}

PhaseWriter::PhaseWriter(const RopeTable& rope) : rope_(rope) {
  rests_.reserve(static_cast<size_t>(kPositionRun) * rope.inv_freq.size());
  for (int64_t rest = 0; rest < kPositionRun; ++rest) {
    for (const double frequency : rope.inv_freq) rests_.push_back(PointAt(rest, frequency, rope.attention_scaling));
  }
}

void PhaseWriter::Write(int64_t first, int64_t count, float* cos, float* sin) const {
  const size_t half = rope_.inv_freq.size();
  std::vector<AnglePoint> multiples(half);
  for (int64_t done = 0; done < count;) {
    const int64_t rest = RestOfPosition(first + done);
    for (size_t i = 0; i < half; ++i) multiples[i] = PointAt(first + done - rest, rope_.inv_freq[i], 1.0);
    const int64_t end = std::min(count, done + kPositionRun - rest);
    const AnglePoint* rests = rests_.data() + static_cast<size_t>(rest) * half;
    for (; done < end; ++done, rests += half, cos += half, sin += half) {
      for (size_t i = 0; i < half; ++i) {
        const Phase phase = SumOfAngles(multiples[i], rests[i]);
        cos[i] = phase.c;
        sin[i] = phase.s;
      }
    }
  }
}

Phases PhaseWriter::Of(std::span<const int64_t> positions) const {
  const size_t half = rope_.inv_freq.size();
  Phases phases{CacheLineVector<float>(positions.size() * half), CacheLineVector<float>(positions.size() * half)};
  ParallelFor(0, static_cast<int64_t>(positions.size()), kGrainPositions, [&](int64_t begin, int64_t end) {
    for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end);) {
      size_t run = 1;
      while (t + run < static_cast<size_t>(end) && positions[t + run] == positions[t + run - 1] + 1) ++run;
      Write(positions[t], static_cast<int64_t>(run), phases.cos.data() + t * half, phases.sin.data() + t * half);
      t += run;
    }
  });
  return phases;
}

}  // namespace everlong::kv
