#include "ops_gpu_device.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <stdexcept>
#include <string>

#include "../../hip/copy.h"

namespace everlong::ops {
namespace {

int32_t GpuOf(std::string_view op, std::string_view argument, const Tensor& k) {
  if (!k.is_cuda()) Reject(op, argument, Describe(k), "a tensor on the GPU, as others of this call are");
  return k.get_device_index();
}

}  // namespace

OnDeviceOf::OnDeviceOf(std::string_view op, std::string_view argument, const Tensor& k)
    : op_(op), k_(k), guard_(GpuOf(op, argument, k)) {
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(k.get_device_index(), &stream_));
}

Tensor OnDeviceOf::Allocate(int64_t bytes) const {
  const std::array<int64_t, 1> size{bytes};
  return torch::stable::new_empty(k_, {size.data(), size.size()}, ScalarType::Byte);
}

void OnDeviceOf::Check(hip::LaunchStatus status) const {
  if (status == 0) return;
  throw std::runtime_error(std::string(op_) + ": on " + Describe(k_) + ": " + hip::LaunchError(status));
}

Tensor OnDeviceOf::UploadBytes(std::span<const std::byte> bytes) const {
  Tensor tensor = Allocate(static_cast<int64_t>(bytes.size()));
  Check(hip::CopyToDevice(tensor.mutable_data_ptr(), bytes.data(), static_cast<int64_t>(bytes.size()), stream_));
  return tensor;
}

void OnDeviceOf::DownloadBytes(const Tensor& tensor, std::span<std::byte> bytes) const {
  Check(hip::CopyToHost(bytes.data(), tensor.const_data_ptr(), static_cast<int64_t>(bytes.size()), stream_));
}

}  // namespace everlong::ops
