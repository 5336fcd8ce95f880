// New tensors for the operators' results.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace everlong::ops {

// Uninitialised and contiguous, on the device of `like`. A large one asks for huge pages: a fresh payload of many
// megabytes would otherwise cost more in page faults than in its bytes.
inline torch::stable::Tensor NewResult(const torch::stable::Tensor& like, std::initializer_list<int64_t> sizes,
                                       torch::headeronly::ScalarType type) {
  const std::vector<int64_t> shape(sizes);
  torch::stable::Tensor result = torch::stable::new_empty(like, {shape.data(), shape.size()}, type);
#if defined(__linux__)
  constexpr uintptr_t kHugePage = 2 << 20;
  const auto bytes = static_cast<uintptr_t>(result.numel()) * static_cast<uintptr_t>(result.element_size());
  if (result.is_cpu() && bytes >= 4 * kHugePage) {
    const auto begin = reinterpret_cast<uintptr_t>(result.mutable_data_ptr());
    const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
    // Advice only: without huge pages the result is the same.
    static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE));
  }
#endif
  return result;
}

}  // namespace everlong::ops
