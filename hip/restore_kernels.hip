#include <algorithm>
#include <cstdint>

#include "grid.h"
#include "restore_kernels.h"
#include "restore_units.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

constexpr int32_t kKeyBlocks = 3;  // fewest blocks of threads that a multiprocessor holds, by their registers

// All phases and all values. Keys are turned by the new phases in the frame, so they come next. Phases are the first
// blocks along x.
template <class Element, int32_t kWidth, class Code>
__global__ void __launch_bounds__(kBlockThreads)
    RestoreValues(RestoreJob job, int32_t layers_a_block, uint32_t phase_blocks, Divisor by_half, Divisor by_units,
                  Divisor by_tokens) {
  if (blockIdx.x < phase_blocks) {
    if (blockIdx.y == 0 && blockIdx.z == 0) PlacePhase(FirstIndex(), job, by_half, by_tokens);
    return;
  }
  const int64_t index = FirstIndex() - int64_t{phase_blocks} * kBlockThreads;
  RestoreUnits<Element, kWidth, false, false, Code>(index, LayersOfBlock(layers_a_block, job.frame.layers), job,
                                                    by_units, by_tokens);
}

template <class Element, int32_t kWidth, bool kInterleaved, class Code>
__global__ void __launch_bounds__(kBlockThreads, kKeyBlocks)
    RestoreKeys(RestoreJob job, int32_t layers_a_block, Divisor by_units, Divisor by_tokens) {
  RestoreUnits<Element, kWidth, kInterleaved, true, Code>(FirstIndex(), LayersOfBlock(layers_a_block, job.frame.layers),
                                                          job, by_units, by_tokens);
}

template <class Element, int32_t kWidth, class Code>
LaunchStatus Launch(const RestoreJob& job, hipStream_t stream) {
  const kv::FrameKv& frame = job.frame;
  const int32_t half = job.phase.half;
  const int32_t units_of_value = UnitsPerRow(frame.head_dim, 0, kWidth);
  const int32_t units_of_key = UnitsPerRow(frame.head_dim, half, kWidth);
  const int64_t rows = job.count * job.most_tokens;
  const LayerGrid values(rows * units_of_value, frame.kv_heads, frame.layers);
  const LayerGrid keys(rows * units_of_key, frame.kv_heads, frame.layers);
  const uint32_t phase_blocks = BlocksOf(rows * half);
  const dim3 threads(kBlockThreads);
  const Divisor by_tokens(job.most_tokens);
  RestoreValues<Element, kWidth, Code><<<values.Behind(phase_blocks), threads, 0, stream>>>(
      job, values.layers_a_block, phase_blocks, Divisor(half > 0 ? half : 1), Divisor(units_of_value), by_tokens);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  if (job.interleaved) {
    RestoreKeys<Element, kWidth, true, Code>
        <<<keys.blocks, threads, 0, stream>>>(job, keys.layers_a_block, Divisor(units_of_key), by_tokens);
  } else {
    RestoreKeys<Element, kWidth, false, Code>
        <<<keys.blocks, threads, 0, stream>>>(job, keys.layers_a_block, Divisor(units_of_key), by_tokens);
  }
  return Launched();
}

}  // namespace

LaunchStatus RestoreKv(const RestoreJob& job, void* stream) {
  if (job.count == 0 || job.most_tokens == 0) return 0;
  return WithElement(job.frame.dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr int32_t kWidth = kVectorWidth<Element>;
    const auto on = static_cast<hipStream_t>(stream);
    return WithCode(job.codec, [&](auto code) {
      using Code = decltype(code);
      if (AllowsVectors(job.frame, job.phase.half, kWidth)) return Launch<Element, kWidth, Code>(job, on);
      return Launch<Element, 1, Code>(job, on);
    });
  });
}

}  // namespace everlong::hip
