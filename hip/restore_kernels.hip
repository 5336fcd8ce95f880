#include <algorithm>
#include <cstdint>

#include "grid.h"
#include "restore_kernels.h"
#include "restore_units.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

constexpr int64_t kMostPlacements = 65535;  // blocks along y

// A row of blocks for each placement; its blocks stride over what the placement holds.
dim3 PlacementBlocks(const RestoreJob& job, int64_t work_of_largest) {
  return dim3(BlocksFor(std::max<int64_t>(work_of_largest, 1)).x,
              static_cast<uint32_t>(std::min(job.count, kMostPlacements)));
}

__global__ void __launch_bounds__(kBlockThreads) PlacePhases(RestoreJob job, Divisor by_half) {
  for (int64_t row = blockIdx.y; row < job.count; row += gridDim.y) {
    const kv::PagePlacement place = job.placements[row];
    const int64_t phases = static_cast<int64_t>(place.tokens) * job.phase.half;
    for (int64_t i = FirstIndex(); i < phases; i += IndexStride()) PlacePhase(i, place, job, by_half);
  }
}

template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys>
__global__ void __launch_bounds__(kBlockThreads) RestoreUnits(RestoreJob job, RestoreDivisors by) {
  const int64_t units = UnitsOfPlacement(job, kKeys ? job.phase.half : 0, kWidth);
  for (int64_t row = blockIdx.y; row < job.count; row += gridDim.y) {
    const kv::PagePlacement place = job.placements[row];
    for (int64_t i = FirstIndex(); i < units; i += IndexStride()) {
      RestoreUnit<Element, kWidth, kInterleaved, kKeys>(i, place, job, by);
    }
  }
}

template <class Element, int32_t kWidth, bool kInterleaved>
LaunchStatus Launch(const RestoreJob& job, hipStream_t stream) {
  const int32_t half = job.phase.half;
  const dim3 key_blocks = PlacementBlocks(job, UnitsOfPlacement(job, half, kWidth));
  const dim3 value_blocks = PlacementBlocks(job, UnitsOfPlacement(job, 0, kWidth));
  const dim3 threads(kBlockThreads);
  RestoreUnits<Element, kWidth, kInterleaved, true>
      <<<key_blocks, threads, 0, stream>>>(job, DivisorsOf(job, half, kWidth));
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  RestoreUnits<Element, kWidth, false, false><<<value_blocks, threads, 0, stream>>>(job, DivisorsOf(job, 0, kWidth));
  return Launched();
}

template <class Element, int32_t kWidth>
LaunchStatus LaunchPairing(const RestoreJob& job, hipStream_t stream) {
  return job.interleaved ? Launch<Element, kWidth, true>(job, stream) : Launch<Element, kWidth, false>(job, stream);
}

}  // namespace

LaunchStatus RestoreKv(const RestoreJob& job, void* stream) {
  if (job.count == 0 || job.most_tokens == 0) return 0;
  const auto on = static_cast<hipStream_t>(stream);
  if (job.phase.half > 0) {  // first: keys are turned by what stands in the frame's phase then
    PlacePhases<<<PlacementBlocks(job, job.most_tokens * job.phase.half), dim3(kBlockThreads), 0, on>>>(
        job, Divisor(job.phase.half));
    EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  }
  return WithElement(job.frame.dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr int32_t kWidth = kVectorWidth<Element>;
    if (AllowsVectors(job.frame, job.phase.half, kWidth)) return LaunchPairing<Element, kWidth>(job, on);
    return LaunchPairing<Element, 1>(job, on);
  });
}

}  // namespace everlong::hip
