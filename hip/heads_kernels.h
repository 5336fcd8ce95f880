// The scan of the heads index on a GPU: raw device pointers and a stream, as hip/rotation_kernels.h has it.
#pragma once

#include "everlong/index/heads_job.h"
#include "launch.h"

namespace everlong::hip {

// job.mass of every page, by an online softmax in one pass over the keys; the same numbers whenever it runs. Scores are
// those of cpp/src/index up to the order of their sums, so masses differ from the CPU's by rounding.
LaunchStatus ScanHeads(const index::HeadsJob& job, void* stream);

}  // namespace everlong::hip
