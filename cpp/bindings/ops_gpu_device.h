// What every operator on a GPU needs of torch: the caller's device and stream, buffers, small tables on the device.
// "CUDA" is torch's word for the device of a ROCm build too.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "../../hip/launch.h"
#include "ops_arguments.h"

namespace everlong::ops {

// Makes k's device current while it lives. All work goes to the stream that was current there. So torch reuses a buffer
// that an operator allocates and frees in the same order.
class OnDeviceOf {
 public:
  // Throws unless k, which is `argument` of the operator, is on a GPU.
  OnDeviceOf(std::string_view op, std::string_view argument, const Tensor& k);

  [[nodiscard]] void* stream() const { return stream_; }

  // Return `bytes` uninitialised bytes on the device, aligned to at least 256 bytes.
  [[nodiscard]] Tensor Allocate(int64_t bytes) const;
  // Throw when enqueueing failed.
  void Check(hip::LaunchStatus status) const;

  // Return a copy of host values on the device. Up to a MiB at once it waits for nothing.
  template <class T>
  [[nodiscard]] Tensor Upload(std::span<const T> values) const {
    return UploadBytes(std::as_bytes(values));
  }
  // Return a value that a kernel writes; it waits for the stream.
  template <class T>
  [[nodiscard]] T Download(const Tensor& tensor) const {
    T value;
    DownloadBytes(tensor, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

 private:
  [[nodiscard]] Tensor UploadBytes(std::span<const std::byte> bytes) const;
  void DownloadBytes(const Tensor& tensor, std::span<std::byte> bytes) const;

  std::string_view op_;
  const Tensor& k_;
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

// Return the first T of a tensor's data.
template <class T>
T* DataOf(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace everlong::ops
