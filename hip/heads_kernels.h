// The scan of the heads index on a GPU, with raw device pointers and a stream, by the rules of hip/rotation_kernels.h.
#pragma once

#include "everlong/index/heads_job.h"
#include "launch.h"

namespace everlong::hip {

// Compute job.mass of every page by an online softmax, in one pass over the keys. Every run gives the same numbers.
// Scores are those of cpp/index up to the order of their sums, so masses differ from the CPU's by rounding.
LaunchStatus ScanHeads(const index::HeadsJob& job, void* stream);

}  // namespace everlong::hip
