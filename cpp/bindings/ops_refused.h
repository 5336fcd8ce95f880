// What an archive on a GPU says of a number that its codec cannot hold, when it is done.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <string_view>

#include "../../hip/archive_kernels.h"

namespace everlong::ops {

// `refused` of archive_kv, checked: uint8 [16] on k's device, contiguous.
void RequireRefused(std::string_view op, const torch::stable::Tensor& k, const torch::stable::Tensor& refused);

// The CPU's error for what was found; of `job` the sizes are read.
void ThrowIfRejected(std::string_view op, const hip::ArchiveJob& job, const hip::RejectedNumber& found);

}  // namespace everlong::ops
