#include <cstdint>

#include "everlong/kv/position_phase.h"
#include "grid.h"
#include "rotation_kernels.h"
#include "rotation_units.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

template <class Element, int32_t kWidth, Turn kTurn, bool kInterleaved>
__global__ void __launch_bounds__(kBlockThreads) RotateUnits(HeadRows rows, PairPhase phase, RowDivisors by) {
  const int64_t units = UnitCount(rows, phase.half, kWidth);
  for (int64_t i = FirstIndex(); i < units; i += IndexStride()) {
    ProcessUnit<Element, kWidth, kTurn, kInterleaved>(i, rows, phase, by);
  }
}

// Compute cos, sin [T, half] of m R(position).
__global__ void __launch_bounds__(kBlockThreads)
    ComputePhase(const int64_t* positions, const double* inv_freq, int64_t tokens, Divisor by_half,
                 double attention_scaling, float* cos_out, float* sin_out) {
  for (int64_t i = FirstIndex(); i < tokens * by_half.divisor(); i += IndexStride()) {
    const int64_t t = by_half.Quotient(i);
    const double frequency = inv_freq[i - t * by_half.divisor()];
    const Phase phase = kv::PhaseAt(positions[t], frequency, attention_scaling);
    cos_out[i] = phase.c;
    sin_out[i] = phase.s;
  }
}

template <class Element, int32_t kWidth, Turn kTurn>
LaunchStatus LaunchUnits(const HeadRows& rows, const PairPhase& phase, hipStream_t stream) {
  const int64_t units = UnitCount(rows, phase.half, kWidth);
  if (units == 0) return 0;
  const RowDivisors by = DivisorsOf(rows, phase.half, kWidth);
  if (phase.interleaved) {
    RotateUnits<Element, kWidth, kTurn, true><<<BlocksFor(units), dim3(kBlockThreads), 0, stream>>>(rows, phase, by);
  } else {
    RotateUnits<Element, kWidth, kTurn, false><<<BlocksFor(units), dim3(kBlockThreads), 0, stream>>>(rows, phase, by);
  }
  return Launched();
}

template <Turn kTurn>
LaunchStatus LaunchRows(const HeadRows& rows, const PairPhase& phase, void* stream) {
  const auto on = static_cast<hipStream_t>(stream);
  return WithElement(rows.dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr int32_t kWidth = kVectorWidth<Element>;
    if (AllowsVectors(rows, phase.half, kWidth)) return LaunchUnits<Element, kWidth, kTurn>(rows, phase, on);
    return LaunchUnits<Element, 1, kTurn>(rows, phase, on);
  });
}

}  // namespace

LaunchStatus RotateRows(const HeadRows& rows, const PairPhase& phase, void* stream) {
  return LaunchRows<Turn::kOn>(rows, phase, stream);
}

LaunchStatus DerotateKv(const HeadRows& k, const HeadRows& v, const PairPhase& phase, void* stream) {
  EVERLONG_RETURN_IF_NOT_LAUNCHED(LaunchRows<Turn::kOff>(k, phase, stream));
  return RotateRows(v, PairPhase{}, stream);
}

LaunchStatus RerotateKv(const HeadRows& k, const HeadRows& v, const int64_t* positions, const double* inv_freq,
                        int32_t half, double attention_scaling, bool interleaved, float* workspace, void* stream) {
  const int64_t angles = k.tokens * half;
  float* sin = workspace + angles;
  if (angles > 0) {
    ComputePhase<<<BlocksFor(angles), dim3(kBlockThreads), 0, static_cast<hipStream_t>(stream)>>>(
        positions, inv_freq, k.tokens, Divisor(half), attention_scaling, workspace, sin);
    EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  }
  EVERLONG_RETURN_IF_NOT_LAUNCHED(RotateRows(k, {workspace, sin, half, interleaved, 0, half}, stream));
  return RotateRows(v, PairPhase{}, stream);
}

}  // namespace everlong::hip
