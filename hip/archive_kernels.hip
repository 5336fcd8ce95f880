#include <cstddef>
#include <cstdint>

#include "archive_kernels.h"
#include "archive_units.h"
#include "grid.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

constexpr int32_t kArchiveBlocks = 2;        // that a multiprocessor holds at once, by their registers
constexpr int32_t kSharedBytes = 48 * 1024;  // what every target gives a block without being asked

__global__ void __launch_bounds__(kBlockThreads) InvertPhases(ArchiveJob job) {
  for (int64_t i = FirstIndex(); i < job.tokens * job.phase.half; i += IndexStride()) InvertPhase(i, job);
}

template <class Element, int32_t kWidth, bool kInterleaved>
__global__ void __launch_bounds__(kBlockThreads, kArchiveBlocks) ArchiveHeadPages(ArchiveJob job) {
  extern __shared__ uint32_t shared[];
  for (int64_t task = blockIdx.x; task < TasksOf(job); task += gridDim.x) {
    const HeadPageArchiver<Element, kWidth, kInterleaved> archiver(job, task, shared, static_cast<int32_t>(threadIdx.x),
                                                                   static_cast<int32_t>(blockDim.x));
    if (kv::HasScales(job.codec)) {
      __syncthreads();  // the task before has read what is cleared now
      archiver.Clear();
      __syncthreads();
      archiver.Measure();
      __syncthreads();
      archiver.StoreScales();
      __syncthreads();
    }
    archiver.Encode();
  }
}

template <class Element, bool kInterleaved>
__global__ void ReadRejectedValue(ArchiveJob job) {
  ReadRejected<Element, kInterleaved>(job);
}

template <class Element, int32_t kWidth, bool kInterleaved>
LaunchStatus Launch(const ArchiveJob& job, hipStream_t stream) {
  const int64_t tasks = TasksOf(job);
  const dim3 blocks(static_cast<uint32_t>(std::min(tasks, kMostBlocks)));
  const size_t shared = kv::HasScales(job.codec) ? static_cast<size_t>(SharedWords(job)) * sizeof(uint32_t) : 0;
  ArchiveHeadPages<Element, kWidth, kInterleaved><<<blocks, dim3(kBlockThreads), shared, stream>>>(job);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  ReadRejectedValue<Element, kInterleaved><<<dim3(1), dim3(1), 0, stream>>>(job);
  return Launched();
}

template <class Element, int32_t kWidth>
LaunchStatus LaunchPairing(const ArchiveJob& job, hipStream_t stream) {
  return job.interleaved ? Launch<Element, kWidth, true>(job, stream) : Launch<Element, kWidth, false>(job, stream);
}

}  // namespace

int32_t MostPageTokens(int32_t head_dim) { return kSharedBytes / static_cast<int32_t>(sizeof(uint32_t)) - head_dim; }

LaunchStatus ArchiveKv(const ArchiveJob& job, void* stream) {
  const auto on = static_cast<hipStream_t>(stream);
  const hipError_t cleared = hipMemsetAsync(job.rejected, 0xFF, sizeof(RejectedNumber), on);  // kNone
  if (cleared != hipError_t{}) return static_cast<LaunchStatus>(cleared);
  if (job.tokens == 0) return 0;
  if (const int64_t phases = job.tokens * job.phase.half; phases > 0) {
    InvertPhases<<<BlocksFor(phases), dim3(kBlockThreads), 0, on>>>(job);
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
