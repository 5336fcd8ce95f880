// New tensors for the operators' results.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "everlong/base/huge_pages.h"

namespace everlong::ops {

// Make a tensor, uninitialised and contiguous, on the device of `like`. It throws std::runtime_error where there is no
// memory for it; python/everlong/ops.py knows the error by these words. Torch's own error is lost in its stable ABI.
inline torch::stable::Tensor NewTensor(const torch::stable::Tensor& like, const std::vector<int64_t>& shape,
                                       torch::headeronly::ScalarType type) {
  try {
    return torch::stable::new_empty(like, {shape.data(), shape.size()}, type);
  } catch (const std::exception&) {
    std::string text = "out of memory: no room on the device for a tensor of";
    for (const int64_t size : shape) text += " " + std::to_string(size);
    throw std::runtime_error(text);
  }
}

// Make a result, which has huge pages where it is on the host.
inline torch::stable::Tensor NewResult(const torch::stable::Tensor& like, std::initializer_list<int64_t> sizes,
                                       torch::headeronly::ScalarType type) {
  torch::stable::Tensor result = NewTensor(like, sizes, type);
  if (result.is_cpu()) {
    AdviseHugePages(result.mutable_data_ptr(), result.numel() * static_cast<int64_t>(result.element_size()));
  }
  return result;
}

}  // namespace everlong::ops
