#include "ops_gpu_device.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "../../hip/copy.h"
#include "core_gpu_runtime.h"
#include "everlong/kv/upload_ring.h"
#include "ops_results.h"

namespace everlong::ops {
namespace {

int32_t GpuOf(std::string_view op, std::string_view argument, const Tensor& k) {
  if (!k.is_cuda()) Reject(op, argument, Describe(k), "a tensor on the GPU, as others of this call are");
  return k.get_device_index();
}

constexpr int64_t kRingBytes = int64_t{1} << 20;  // tables of a restore take some kilobytes

// Return the ring of a device; none where there is no pinned RAM for it. It is kept to the end of the process, because
// the runtime may be gone before static objects are destroyed.
kv::UploadRing* RingOf(int32_t device) {
  static auto* const mutex = new std::mutex;
  static auto* const rings = new std::map<int32_t, std::unique_ptr<kv::UploadRing>>;
  const std::lock_guard lock(*mutex);
  std::unique_ptr<kv::UploadRing>& ring = (*rings)[device];
  if (ring == nullptr) {
    auto made = kv::UploadRing::Make(std::make_shared<bindings::GpuStreamRuntime>(device), kRingBytes);
    if (made.ok()) ring = std::move(made).value();
  }
  return ring.get();
}

}  // namespace

OnDeviceOf::OnDeviceOf(std::string_view op, std::string_view argument, const Tensor& k)
    : op_(op), k_(k), guard_(GpuOf(op, argument, k)) {
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(k.get_device_index(), &stream_));
}

Tensor OnDeviceOf::Allocate(int64_t bytes) const { return NewTensor(k_, {bytes}, ScalarType::Byte); }

void OnDeviceOf::Check(hip::LaunchStatus status) const {
  if (status == 0) return;
  throw std::runtime_error(std::string(op_) + ": on " + Describe(k_) + ": " + hip::LaunchError(status));
}

Tensor OnDeviceOf::UploadBytes(std::span<const std::byte> bytes) const {
  Tensor tensor = Allocate(static_cast<int64_t>(bytes.size()));
  kv::UploadRing* const ring = RingOf(k_.get_device_index());
  if (ring != nullptr && std::ssize(bytes) <= ring->bytes()) {
    ThrowIfError(op_, ring->Upload(stream_, static_cast<std::byte*>(tensor.mutable_data_ptr()), bytes));
    return tensor;
  }
  Check(hip::CopyToDevice(tensor.mutable_data_ptr(), bytes.data(), static_cast<int64_t>(bytes.size()), stream_));
  return tensor;
}

void OnDeviceOf::DownloadBytes(const Tensor& tensor, std::span<std::byte> bytes) const {
  Check(hip::CopyToHost(bytes.data(), tensor.const_data_ptr(), static_cast<int64_t>(bytes.size()), stream_));
}

}  // namespace everlong::ops
