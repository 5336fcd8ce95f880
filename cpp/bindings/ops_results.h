// New tensors for the operators' results.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "everlong/base/huge_pages.h"

namespace everlong::ops {

// Uninitialised and contiguous, on the device of `like`.
inline torch::stable::Tensor NewResult(const torch::stable::Tensor& like, std::initializer_list<int64_t> sizes,
                                       torch::headeronly::ScalarType type) {
  const std::vector<int64_t> shape(sizes);
  torch::stable::Tensor result = torch::stable::new_empty(like, {shape.data(), shape.size()}, type);
  if (result.is_cpu()) {
    AdviseHugePages(result.mutable_data_ptr(), result.numel() * static_cast<int64_t>(result.element_size()));
  }
  return result;
}

}  // namespace everlong::ops
