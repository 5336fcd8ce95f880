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

__global__ void __launch_bounds__(kBlockThreads) PlacePhases(RestoreJob job) {
  for (int64_t row = blockIdx.y; row < job.count; row += gridDim.y) {
    const kv::PagePlacement place = job.placements[row];
    const int64_t phases = static_cast<int64_t>(place.tokens) * job.phase.half;
    for (int64_t i = FirstIndex(); i < phases; i += IndexStride()) PlacePhase(i, place, job);
  }
}

template <class Element, int32_t kWidth, bool kInterleaved, bool kKeys>
__global__ void __launch_bounds__(kBlockThreads) RestoreUnits(RestoreJob job) {
  for (int64_t row = blockIdx.y; row < job.count; row += gridDim.y) {
    const kv::PagePlacement place = job.placements[row];
    const int64_t units = UnitsOfPlacement(place, job, kKeys ? job.phase.half : 0, kWidth);
    for (int64_t i = FirstIndex(); i < units; i += IndexStride()) {
      RestoreUnit<Element, kWidth, kInterleaved, kKeys>(i, place, job);
    }
  }
}

template <class Element, int32_t kWidth, bool kInterleaved>
LaunchStatus Launch(const RestoreJob& job, hipStream_t stream) {
  const int64_t rows = static_cast<int64_t>(job.frame.layers) * job.frame.kv_heads * job.most_tokens;
  const int64_t keys = rows * UnitsPerRow(job.frame.head_dim, job.phase.half, kWidth);
  const int64_t values = rows * UnitsPerRow(job.frame.head_dim, 0, kWidth);
  const dim3 threads(kBlockThreads);
  RestoreUnits<Element, kWidth, kInterleaved, true><<<PlacementBlocks(job, keys), threads, 0, stream>>>(job);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  RestoreUnits<Element, kWidth, false, false><<<PlacementBlocks(job, values), threads, 0, stream>>>(job);
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
    PlacePhases<<<PlacementBlocks(job, job.most_tokens * job.phase.half), dim3(kBlockThreads), 0, on>>>(job);
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
