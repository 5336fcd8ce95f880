// The scan of the part "meaning" on a GPU: raw device pointers and a stream, as hip/rotation_kernels.h has it.
#pragma once

#include "everlong/index/meaning_job.h"
#include "launch.h"

namespace everlong::hip {

// job.scores of every page, in one pass over the vectors: those of cpp/src/index to the bit.
LaunchStatus ScanMeaning(const index::MeaningJob& job, void* stream);

}  // namespace everlong::hip
