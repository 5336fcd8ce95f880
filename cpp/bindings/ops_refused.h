// The later error of an archive on a GPU, for a number that its codec cannot hold.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string_view>

#include "everlong/kv/payload.h"
#include "everlong/kv/refused.h"

namespace everlong::ops {

// Check `refused` of archive_kv: uint8 [16] on k's device, contiguous.
void RequireRefused(std::string_view op, const torch::stable::Tensor& k, const torch::stable::Tensor& refused);

// Throw the CPU's error for what was found in a span that begins at `first_slot`.
void ThrowIfRefused(std::string_view op, const kv::PayloadLayout& layout, int64_t first_slot,
                    const kv::RefusedNumber& found);

}  // namespace everlong::ops
