#include <cstdint>

// clang-format off
#include "vendor.h"  // first: the units are device code here
// clang-format on

#include "gather_kernels.h"
#include "gather_units.h"
#include "grid.h"

namespace everlong::hip {
namespace {

// The common arguments of the kernels of one gather.
struct GatherJob {
  kv::FrameKv from;
  kv::SlotPhase from_phase;
  kv::FrameKv to;
  kv::SlotPhase to_phase;
  SlotGather gather;
  TakenRope rope;
  GatherTurn turn;
};

// All phases and all values. Keys need the phases, so they come next. The first blocks along x have the phases.
template <class Element, int32_t kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    GatherValues(GatherJob job, int32_t layers_a_block, uint32_t phase_blocks, Divisor by_half, Divisor by_units) {
  if (blockIdx.x < phase_blocks) {
    const int64_t index = FirstIndex();
    if (blockIdx.y > 0 || blockIdx.z > 0 || index >= job.gather.count * by_half.divisor()) return;
    ComposeGather(index, job.from_phase, job.to_phase, job.gather, job.rope, by_half, job.turn);
    return;
  }
  const int64_t index = FirstIndex() - static_cast<int64_t>(phase_blocks) * kBlockThreads;
  GatherUnits<Element, kWidth, false, false>(index, LayersOfBlock(layers_a_block, job.to.layers), job.from, job.to, 0,
                                             job.gather, job.turn, by_units);
}

template <class Element, int32_t kWidth, bool kInterleaved>
__global__ void __launch_bounds__(kBlockThreads) GatherKeys(GatherJob job, int32_t layers_a_block, Divisor by_units) {
  GatherUnits<Element, kWidth, kInterleaved, true>(FirstIndex(), LayersOfBlock(layers_a_block, job.to.layers), job.from,
                                                   job.to, job.to_phase.half, job.gather, job.turn, by_units);
}

template <class Element, int32_t kWidth>
LaunchStatus Launch(const GatherJob& job, hipStream_t stream) {
  const kv::FrameKv& to = job.to;
  const int32_t half = job.to_phase.half;
  const int32_t values = UnitsPerRow(to.head_dim, 0, kWidth);
  const int32_t keys = UnitsPerRow(to.head_dim, half, kWidth);
  const LayerGrid value_grid(job.gather.count * values, to.kv_heads, to.layers);
  const LayerGrid key_grid(job.gather.count * keys, to.kv_heads, to.layers);
  const uint32_t phase_blocks = half > 0 ? BlocksOf(job.gather.count * half) : 0;
  const dim3 threads(kBlockThreads);
  GatherValues<Element, kWidth><<<value_grid.Behind(phase_blocks), threads, 0, stream>>>(
      job, value_grid.layers_a_block, phase_blocks, Divisor(half > 0 ? half : 1), Divisor(values));
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  if (job.rope.interleaved) {
    GatherKeys<Element, kWidth, true>
        <<<key_grid.blocks, threads, 0, stream>>>(job, key_grid.layers_a_block, Divisor(keys));
  } else {
    GatherKeys<Element, kWidth, false>
        <<<key_grid.blocks, threads, 0, stream>>>(job, key_grid.layers_a_block, Divisor(keys));
  }
  return Launched();
}

}  // namespace

LaunchStatus GatherKv(const kv::FrameKv& from, const kv::SlotPhase& from_phase, const kv::FrameKv& to,
                      const kv::SlotPhase& to_phase, const SlotGather& gather, const TakenRope& rope, float* workspace,
                      void* stream) {
  if (gather.count == 0) return 0;
  const int32_t half = to_phase.half;
  const GatherJob job{from, from_phase, to, to_phase, gather, rope, {workspace, workspace + gather.count * half}};
  return WithElement(to.dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr int32_t kWidth = kVectorWidth<Element>;
    const auto on = static_cast<hipStream_t>(stream);
    if (AllowsVectors(from, half, kWidth) && AllowsVectors(to, half, kWidth)) return Launch<Element, kWidth>(job, on);
    return Launch<Element, 1>(job, on);
  });
}

}  // namespace everlong::hip
