// How work is spread over blocks of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launch.h"
#include "row_units.h"
#include "vendor.h"

namespace everlong::hip {

inline constexpr int32_t kBlockThreads = 256;
inline constexpr int64_t kMostBlocks = 1 << 20;  // threads stride over the rest

// Return as many blocks as hold `work` threads, so that none strides.
inline uint32_t BlocksOf(int64_t work) { return static_cast<uint32_t>((work + kBlockThreads - 1) / kBlockThreads); }

inline dim3 BlocksFor(int64_t work) {
  return dim3(static_cast<uint32_t>(std::min((work + kBlockThreads - 1) / kBlockThreads, kMostBlocks)));
}

// Return how many layers a block of threads takes one after the other, when each layer alone makes blocks_a_layer.
// Threads that take many layers do only once what all layers share. Enough blocks are left for any GPU.
inline int32_t LayersABlock(int64_t blocks_a_layer, int32_t layers) {
  constexpr int64_t kEnoughBlocks = 2048;
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(layers * blocks_a_layer / kEnoughBlocks, 1, layers));
  const int32_t groups = (layers + most - 1) / most;
  return (layers + groups - 1) / groups;
}

// Blocks for `work` units of every head of every layer: units along x, heads along y, layers along z.
struct LayerGrid {
  dim3 blocks;
  int32_t layers_a_block = 1;

  LayerGrid(int64_t work, int32_t heads, int32_t layers) {
    const uint32_t of_head = BlocksOf(work);
    layers_a_block = LayersABlock(int64_t{of_head} * heads, layers);
    const int32_t groups = (layers + layers_a_block - 1) / layers_a_block;
    blocks = dim3(of_head, static_cast<uint32_t>(heads), static_cast<uint32_t>(groups));
  }

  // Return the grid with `others` more blocks in front, along x.
  [[nodiscard]] dim3 Behind(uint32_t others) const { return dim3(others + blocks.x, blocks.y, blocks.z); }
};

// Return the status of the last launch.
inline LaunchStatus Launched() { return static_cast<LaunchStatus>(hipGetLastError()); }

// Return a runtime's answer that is not a launch's ("no memory", "not ready"), and keep Launched from reporting it.
inline LaunchStatus Answered(hipError_t answer) {
  if (answer != hipError_t{}) static_cast<void>(hipGetLastError());
  return static_cast<LaunchStatus>(answer);
}

// Return the head and layers of the calling thread's block in a LayerGrid.
__device__ inline HeadLayers LayersOfBlock(int32_t layers_a_block, int32_t layers) {
  const int32_t first = static_cast<int32_t>(blockIdx.z) * layers_a_block;
  return {static_cast<int32_t>(blockIdx.y), first, min(first + layers_a_block, layers)};
}

// The calling thread's first index of a loop over work, and the step between its indexes.
__device__ inline int64_t FirstIndex() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t IndexStride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace everlong::hip

// Return from the calling function when enqueueing failed.
#define EVERLONG_RETURN_IF_NOT_LAUNCHED(call)                                                                       \
  do {                                                                                                              \
    if (const ::everlong::hip::LaunchStatus everlong_launch = (call); everlong_launch != 0) return everlong_launch; \
  } while (false)
