#include <algorithm>
#include <cstdint>

#include "grid.h"
#include "heads_kernels.h"
#include "heads_units.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

constexpr int32_t kTasksABlock = TasksAtOnce(kBlockThreads);

template <index::KeyStorage kStorage>
__global__ void __launch_bounds__(kBlockThreads) ScorePages(index::HeadsJob job) {
  __shared__ index::PageShare shared[index::kBlockRows * kBlockThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kTasksABlock;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kTasksABlock; first < PageTasks(job); first += stride) {
    ScoreTokens<kStorage>(job, first, thread, kBlockThreads, shared);
    __syncthreads();
    JoinTokens(job, first, thread, kBlockThreads, shared);
    __syncthreads();  // the next round writes what was read now
  }
}

__global__ void __launch_bounds__(kBlockThreads) FactorRows(index::HeadsJob job) {
  __shared__ RowSum shared[kBlockThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t row = blockIdx.x; row < job.blocks * index::kBlockRows; row += gridDim.x) {
    SumRow(job, row, thread, kBlockThreads, shared);
    __syncthreads();
    if (thread == 0) FactorRow(job, row, kBlockThreads, shared);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kBlockThreads) MassOfPages(index::HeadsJob job) {
  for (int64_t page = FirstIndex(); page < job.page_count; page += IndexStride()) MassOfPage(job, page);
}

}  // namespace

LaunchStatus ScanHeads(const index::HeadsJob& job, void* stream) {
  if (PageTasks(job) == 0) return 0;
  const auto on = static_cast<hipStream_t>(stream);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(WithStorage(job.layout.storage, [&](auto storage) {
    ScorePages<storage()><<<BlocksFor(PageTasks(job) * kPageLanes), dim3(kBlockThreads), 0, on>>>(job);
    return Launched();
  }));
  const int64_t rows = job.blocks * index::kBlockRows;
  FactorRows<<<dim3(static_cast<uint32_t>(std::min(rows, kMostBlocks))), dim3(kBlockThreads), 0, on>>>(job);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  MassOfPages<<<BlocksFor(job.page_count), dim3(kBlockThreads), 0, on>>>(job);
  return Launched();
}

}  // namespace everlong::hip
