#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "grid.h"
#include "heads_kernels.h"
#include "heads_units.h"
#include "lanes.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

// Blocks of threads that a multiprocessor holds at once, by their registers.
constexpr int32_t kScoreBlocks = 3;

template <int32_t kStep>
__device__ inline void JoinLanes(int32_t lane, index::PageShare (&shares)[index::kBlockRows]) {
  index::PageShare rows[ShareExchange::Exchanged(kStep)];
  ShareExchange::Give<kStep>(lane, shares, rows);
  EVERLONG_UNROLL
  for (index::PageShare& row : rows) {
    row = {FromLane<kPageLanes>(row.largest, ShareExchange::Distance(kStep)),
           FromLane<kPageLanes>(row.sum, ShareExchange::Distance(kStep))};
  }
  ShareExchange::Take<kStep>(rows, shares);
  if constexpr (kStep + 1 < ShareExchange::kSteps) JoinLanes<kStep + 1>(lane, shares);
}

template <index::KeyStorage kStorage>
__global__ void __launch_bounds__(kBlockThreads, kScoreBlocks) ScorePages(index::HeadsJob job, Divisor by_blocks) {
  extern __shared__ __align__(16) float queries[];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kPageLanes;
  for (int64_t at = blockIdx.x; at < ScoreTasks(job, kBlockThreads); at += gridDim.x) {
    const PageTask task = ScoreTaskAt(job, by_blocks, at, kBlockThreads);
    __syncthreads();  // the task before has read what is overwritten now
    StageQueries<kStorage>(job, task.block, thread, kBlockThreads, queries);
    __syncthreads();
    for (int64_t page = task.first_page + thread / kPageLanes; page < task.end_page;
         page += PagesAtOnce(kBlockThreads)) {
      index::PageShare shares[index::kBlockRows];
      ScorePage<kStorage>(job, task.block, page, lane, queries, shares);
      JoinLanes<0>(lane, shares);
      StoreShare(job, task.block, page, lane, shares[0]);
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads) FactorRows(index::HeadsJob job) {
  __shared__ RowSum shared[kBlockThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t row = blockIdx.x; row < job.blocks * index::kBlockRows; row += gridDim.x) {
    SumRow(job, row, thread, kBlockThreads, shared);
    __syncthreads();
    for (int32_t left = kBlockThreads; left > 1; left = HalfOf(left)) {
      FoldRow(left, thread, shared);
      __syncthreads();
    }
    if (thread == 0) FactorRow(job, row, shared[0]);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kBlockThreads) MassOfPages(index::HeadsJob job) {
  for (int64_t page = FirstIndex(); page < job.page_count; page += IndexStride()) MassOfPage(job, page);
}

}  // namespace

LaunchStatus ScanHeads(const index::HeadsJob& job, void* stream) {
  const int64_t tasks = ScoreTasks(job, kBlockThreads);
  if (tasks == 0) return 0;
  const auto on = static_cast<hipStream_t>(stream);
  const dim3 blocks(static_cast<uint32_t>(std::min(tasks, kMostBlocks)));
  EVERLONG_RETURN_IF_NOT_LAUNCHED(WithStorage(job.layout.storage, [&](auto storage) {
    const size_t numbers = static_cast<size_t>(WordDims<storage()>(job.layout)) * index::kBlockRows;
    ScorePages<storage()><<<blocks, dim3(kBlockThreads), numbers * sizeof(float), on>>>(job, Divisor(job.blocks));
    return Launched();
  }));
  const int64_t rows = job.blocks * index::kBlockRows;
  FactorRows<<<dim3(static_cast<uint32_t>(std::min(rows, kMostBlocks))), dim3(kBlockThreads), 0, on>>>(job);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  MassOfPages<<<BlocksFor(job.page_count), dim3(kBlockThreads), 0, on>>>(job);
  return Launched();
}

}  // namespace everlong::hip
