#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "grid.h"
#include "lanes.h"
#include "meaning_kernels.h"
#include "meaning_units.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

// Blocks of threads that a multiprocessor holds at once, by their registers.
constexpr int32_t kMaximaBlocks = 2;

template <int32_t kStep>
__device__ inline void JoinMaxima(int32_t lane, float (&maxima)[index::kMeaningRows]) {
  float rows[MaximaExchange::Exchanged(kStep)];
  MaximaExchange::Give<kStep>(lane, maxima, rows);
  EVERLONG_UNROLL
  for (float& row : rows) row = FromLane<kTileLanes>(row, MaximaExchange::Distance(kStep));
  MaximaExchange::Take<kStep>(rows, maxima);
  if constexpr (kStep + 1 < MaximaExchange::kSteps) JoinMaxima<kStep + 1>(lane, maxima);
}

__global__ void __launch_bounds__(kBlockThreads, kMaximaBlocks)
    MaximaOfPages(index::MeaningJob job, Divisor by_blocks) {
  extern __shared__ __align__(16) uint32_t rows[];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kTileLanes;
  for (int64_t at = blockIdx.x; at < MeaningTasks(job, kBlockThreads); at += gridDim.x) {
    const PageTask task = MeaningTaskAt(job, by_blocks, at, kBlockThreads);
    __syncthreads();  // the task before has read what is overwritten now
    StageRows(job, task.block, thread, kBlockThreads, rows);
    __syncthreads();
    // All threads of a warp exchange together, so those past the end score the last page for nothing.
    for (int64_t first = task.first_page; first < task.end_page; first += TilePagesAtOnce(kBlockThreads)) {
      const int64_t own = first + thread / kTileLanes;
      const bool there = own < task.end_page;
      const int64_t page = there ? own : task.end_page - 1;
      float maxima[index::kMeaningRows];
      MaximaOfLane(job.pages[page], job.quads, lane, rows, maxima);
      JoinMaxima<0>(lane, maxima);
      if (there) StoreMaxima(job, task.block, page, lane, maxima);
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads) ScoresOfPages(index::MeaningJob job) {
  for (int64_t page = FirstIndex(); page < job.page_count; page += IndexStride()) ScoreOfPage(job, page);
}

}  // namespace

LaunchStatus ScanMeaning(const index::MeaningJob& job, void* stream) {
  const int64_t tasks = MeaningTasks(job, kBlockThreads);
  if (tasks == 0) return 0;
  const auto on = static_cast<hipStream_t>(stream);
  const dim3 blocks(static_cast<uint32_t>(std::min(tasks, kMostBlocks)));
  const size_t bytes = static_cast<size_t>(job.quads) * index::kMeaningRows * sizeof(uint32_t);
  MaximaOfPages<<<blocks, dim3(kBlockThreads), bytes, on>>>(job, Divisor(job.blocks));
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  ScoresOfPages<<<BlocksFor(job.page_count), dim3(kBlockThreads), 0, on>>>(job);
  return Launched();
}

}  // namespace everlong::hip
