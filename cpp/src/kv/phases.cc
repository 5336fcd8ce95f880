#include "phases.h"

#include <algorithm>
#include <cmath>

#include "everlong/base/parallel_for.h"
#include "everlong/kv/element.h"

namespace everlong::kv {
namespace {

constexpr int64_t kGrainNumbers = 16384;
constexpr int64_t kGrainPositions = 128;

}  // namespace

Phases InversePhases(const float* cos, const float* sin, int64_t count) {
  Phases inverse{std::vector<float>(static_cast<size_t>(count)), std::vector<float>(static_cast<size_t>(count))};
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
  for (int64_t rest = 0; rest < kRun; ++rest) {
    for (const double frequency : rope.inv_freq) {
      const double angle = static_cast<double>(rest) * frequency;
      rest_cos_.push_back(std::cos(angle) * rope.attention_scaling);
      rest_sin_.push_back(std::sin(angle) * rope.attention_scaling);
    }
  }
}

void PhaseWriter::Write(int64_t first, int64_t count, float* cos, float* sin) const {
  const size_t half = rope_.inv_freq.size();
  std::vector<double> base(2 * half);
  double* const base_cos = base.data();
  double* const base_sin = base.data() + half;
  for (int64_t done = 0; done < count;) {
    const int64_t rest = ((first + done) % kRun + kRun) % kRun;
    const auto multiple = static_cast<double>(first + done - rest);
    for (size_t i = 0; i < half; ++i) {
      const double angle = multiple * rope_.inv_freq[i];
      base_cos[i] = std::cos(angle);
      base_sin[i] = std::sin(angle);
    }
    const int64_t end = std::min(count, done + kRun - rest);
    const double* rest_cos = rest_cos_.data() + static_cast<size_t>(rest) * half;
    const double* rest_sin = rest_sin_.data() + static_cast<size_t>(rest) * half;
    for (; done < end; ++done, rest_cos += half, rest_sin += half, cos += half, sin += half) {
      for (size_t i = 0; i < half; ++i) {
        cos[i] = static_cast<float>(base_cos[i] * rest_cos[i] - base_sin[i] * rest_sin[i]);
        sin[i] = static_cast<float>(base_sin[i] * rest_cos[i] + base_cos[i] * rest_sin[i]);
      }
    }
  }
}

Phases PhaseWriter::Of(std::span<const int64_t> positions) const {
  const size_t half = rope_.inv_freq.size();
  Phases phases{std::vector<float>(positions.size() * half), std::vector<float>(positions.size() * half)};
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
