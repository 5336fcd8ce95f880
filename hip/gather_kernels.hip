#include <cstdint>

// clang-format off
#include "vendor.h"  // first: the units are device code here
// clang-format on

#include "gather_kernels.h"
#include "gather_units.h"
#include "grid.h"

namespace everlong::hip {
namespace {

__global__ void __launch_bounds__(kBlockThreads)
    ComposeGathers(kv::SlotPhase from, kv::SlotPhase to, SlotGather gather, TakenPhase taken, Divisor by_half,
                   float* cos_out, float* sin_out) {
  for (int64_t i = FirstIndex(); i < gather.count * by_half.divisor(); i += IndexStride()) {
    ComposeGather(i, from, to, gather, taken, by_half, cos_out, sin_out);
  }
}

template <class Element, int32_t kWidth, bool kInterleaved>
__global__ void __launch_bounds__(kBlockThreads)
    GatherUnits(HeadRows rows, SlotGather gather, PairPhase phase, RowDivisors by) {
  const int64_t units = UnitCount(rows, phase.half, kWidth);
  for (int64_t i = FirstIndex(); i < units; i += IndexStride()) {
    GatherUnit<Element, kWidth, kInterleaved>(i, rows, gather, phase, by);
  }
}

template <class Element, int32_t kWidth>
LaunchStatus LaunchUnits(const HeadRows& rows, const SlotGather& gather, const PairPhase& phase, hipStream_t stream) {
  const int64_t units = UnitCount(rows, phase.half, kWidth);
  if (units == 0) return 0;
  const RowDivisors by = DivisorsOf(rows, phase.half, kWidth);
  const dim3 blocks = BlocksFor(units);
  if (phase.interleaved) {
    GatherUnits<Element, kWidth, true><<<blocks, dim3(kBlockThreads), 0, stream>>>(rows, gather, phase, by);
  } else {
    GatherUnits<Element, kWidth, false><<<blocks, dim3(kBlockThreads), 0, stream>>>(rows, gather, phase, by);
  }
  return Launched();
}

LaunchStatus LaunchRows(const HeadRows& rows, const SlotGather& gather, const PairPhase& phase, hipStream_t stream) {
  return WithElement(rows.dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr int32_t kWidth = kVectorWidth<Element>;
    if (AllowsVectors(rows, phase.half, kWidth)) return LaunchUnits<Element, kWidth>(rows, gather, phase, stream);
    return LaunchUnits<Element, 1>(rows, gather, phase, stream);
  });
}

}  // namespace

LaunchStatus GatherKv(const kv::FrameKv& from, const kv::SlotPhase& from_phase, const kv::FrameKv& to,
                      const kv::SlotPhase& to_phase, const SlotGather& gather, const TakenPhase& taken,
                      float* workspace, void* stream) {
  const auto on = static_cast<hipStream_t>(stream);
  const int32_t half = from_phase.half;
  const int64_t phases = gather.count * half;
  float* const cos = workspace;
  float* const sin = workspace + phases;
  if (phases > 0) {
    ComposeGathers<<<BlocksFor(phases), dim3(kBlockThreads), 0, on>>>(from_phase, to_phase, gather, taken,
                                                                      Divisor(half), cos, sin);
    EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  }
  const PairPhase phase{cos, sin, half, taken.interleaved, 0, half};
  EVERLONG_RETURN_IF_NOT_LAUNCHED(LaunchRows(GatheredRows(from, from.k, to, to.k, gather.count), gather, phase, on));
  return LaunchRows(GatheredRows(from, from.v, to, to.v, gather.count), gather, PairPhase{}, on);
}

}  // namespace everlong::hip
