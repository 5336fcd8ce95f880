// The scan of the part "meaning" on a GPU, with device pointers and a stream, by the rules of hip/rotation_kernels.h.
#pragma once

#include "everlong/index/meaning_job.h"
#include "launch.h"

namespace everlong::hip {

// Compute job.scores of every page in one pass over the vectors. They are those of cpp/index to the bit.
LaunchStatus ScanMeaning(const index::MeaningJob& job, void* stream);

}  // namespace everlong::hip
