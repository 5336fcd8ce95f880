#include <cstddef>
#include <cstdint>
#include <type_traits>

// clang-format off
#include "vendor.h"  // first: the units are device code here
// clang-format on

#include "archive_kernels.h"
#include "archive_key_part.h"
#include "archive_steps.h"
#include "archive_units.h"
#include "archive_value_part.h"
#include "grid.h"

namespace everlong::hip {
namespace {

// The fewest blocks of threads that a multiprocessor holds, by their registers: of rows, and of parts of pages.
constexpr int32_t kRowBlocks = 3;
constexpr int32_t kPageBlocks = 2;

// Units of keys and of values. The first key_blocks along x are units of keys.
template <class Element, int32_t kWidth, bool kInterleaved, class Code>
__global__ void __launch_bounds__(kBlockThreads, kRowBlocks)
    ArchiveRows(ArchiveJob job, int32_t layers_a_block, uint32_t key_blocks, Divisor by_key, Divisor by_value,
                Divisor by_page) {
  const HeadLayers span = LayersOfBlock(layers_a_block, job.frame.layers);
  if (blockIdx.x < key_blocks) {
    ArchiveUnits<Element, kWidth, kInterleaved, true, Code>(FirstIndex(), span, job, by_key, by_page);
  } else {
    const int64_t index = FirstIndex() - int64_t{key_blocks} * kBlockThreads;
    ArchiveUnits<Element, kWidth, false, false, Code>(index, span, job, by_value, by_page);
  }
}

template <class Part>
__device__ void ArchivePart(Part part, int32_t first_layer, int32_t end_layer) {
  part.Load(first_layer);
  for (int32_t layer = first_layer; layer < end_layer; ++layer) {
    part.Measure(layer);
    if (layer + 1 < end_layer) part.Load(layer + 1);
    __syncthreads();
    part.Scale(layer);
    __syncthreads();
    part.Encode(layer);
  }
}

// Along x are the parts of the heads' pages, the part fastest. Along y are the layers.
template <class Element, int32_t kWidth, bool kInterleaved, class Code>
__global__ void __launch_bounds__(kPageThreads, kPageBlocks)
    ArchivePages(ArchiveJob job, PageParts parts, int32_t layers_a_block) {
  extern __shared__ uint32_t shared[];
  const auto part = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(parts.parts()));
  const uint32_t head_page = blockIdx.x / static_cast<uint32_t>(parts.parts());
  const auto heads = static_cast<uint32_t>(job.frame.kv_heads);
  const HeadPage at = HeadPageAt(job, head_page / heads, static_cast<int32_t>(head_page % heads));
  const int32_t first = static_cast<int32_t>(blockIdx.y) * layers_a_block;
  const int32_t end = min(first + layers_a_block, job.frame.layers);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (part < parts.key_parts) {
    ArchivePart(KeyPart<Element, kWidth, kInterleaved, Code>(job, parts, at, part, shared, thread), first, end);
  } else {
    ArchivePart(ValuePart<Element, kWidth, Code>(job, parts, at, part - parts.key_parts, shared, thread), first, end);
  }
}

template <class Element, bool kInterleaved>
__global__ void __launch_bounds__(kBlockThreads) ArchiveStepsOf(ArchiveJob job, int32_t layers_a_block) {
  ArchiveSteps<Element, kInterleaved>(FirstIndex(), LayersOfBlock(layers_a_block, job.frame.layers), job);
}

template <class Element, bool kInterleaved>
__global__ void ReadRejectedValue(ArchiveJob job) {
  ReadRejected<Element, kInterleaved>(job);
}

template <class Element, int32_t kWidth, bool kInterleaved, class Code>
LaunchStatus Launch(const ArchiveJob& job, hipStream_t stream) {
  const kv::FrameKv& frame = job.frame;
  if constexpr (std::is_same_v<Code, StepsElement>) {
    const LayerGrid units(StepsUnits(job), frame.kv_heads, frame.layers);
    ArchiveStepsOf<Element, kInterleaved><<<units.blocks, dim3(kBlockThreads), 0, stream>>>(job, units.layers_a_block);
  } else if constexpr (sizeof(BitsOf<Code>) == 1) {
    const PageParts parts = PartsOfPage<kWidth>(job);
    const int64_t of_layer = PagesOf(job) * frame.kv_heads * parts.parts();
    const int32_t layers_a_block = LayersABlock(of_layer, frame.layers);
    const dim3 blocks(static_cast<uint32_t>(of_layer),
                      static_cast<uint32_t>((frame.layers + layers_a_block - 1) / layers_a_block));
    const dim3 threads(static_cast<uint32_t>(parts.threads));
    const size_t shared = static_cast<size_t>(parts.shared_words) * sizeof(uint32_t);
    ArchivePages<Element, kWidth, kInterleaved, Code><<<blocks, threads, shared, stream>>>(job, parts, layers_a_block);
  } else {
    const int32_t units_of_key = UnitsPerRow(frame.head_dim, job.phase.half, kWidth);
    const int32_t units_of_value = UnitsPerRow(frame.head_dim, 0, kWidth);
    const uint32_t key_blocks = BlocksOf(job.tokens * units_of_key);
    const LayerGrid values(job.tokens * units_of_value, frame.kv_heads, frame.layers);
    ArchiveRows<Element, kWidth, kInterleaved, Code><<<values.Behind(key_blocks), dim3(kBlockThreads), 0, stream>>>(
        job, values.layers_a_block, key_blocks, Divisor(units_of_key), Divisor(units_of_value),
        Divisor(job.page_tokens));
  }
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  ReadRejectedValue<Element, kInterleaved><<<dim3(1), dim3(1), 0, stream>>>(job);
  return Launched();
}

template <class Element, int32_t kWidth, class Code>
LaunchStatus LaunchPairing(const ArchiveJob& job, hipStream_t stream) {
  return job.interleaved ? Launch<Element, kWidth, true, Code>(job, stream)
                         : Launch<Element, kWidth, false, Code>(job, stream);
}

}  // namespace

LaunchStatus ArchiveKv(const ArchiveJob& job, void* stream) {
  const auto on = static_cast<hipStream_t>(stream);
  const hipError_t cleared = hipMemsetAsync(job.rejected, 0xFF, sizeof(RejectedNumber), on);  // kNone
  if (cleared != hipError_t{}) return static_cast<LaunchStatus>(cleared);
  if (job.tokens == 0) return 0;
  return WithElement(job.frame.dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr int32_t kWidth = kVectorWidth<Element>;
    return WithCode(job.codec, [&](auto code) {
      using Code = decltype(code);
      if constexpr (!std::is_same_v<Code, StepsElement>) {
        if (AllowsVectors(job.frame, job.phase.half, kWidth) && AllowsColumns(job, kWidth)) {
          return LaunchPairing<Element, kWidth, Code>(job, on);
        }
      }
      return LaunchPairing<Element, 1, Code>(job, on);
    });
  });
}

}  // namespace everlong::hip
