#include "ops_gpu_memory.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

#include "everlong/base/device_memory.h"

namespace everlong::ops::gpu {
namespace {

// Make a tensor of bytes with `stream` current. Torch then gives its memory only to work on that stream, in its order.
DeviceMemory Allocate(int32_t device, void* stream, int64_t bytes) {
  CUDAStreamGuardHandle current = nullptr;
  if (aoti_torch_create_cuda_stream_guard(stream, device, &current) != AOTI_TORCH_SUCCESS) return {};
  constexpr int64_t kStride = 1;
  AtenTensorHandle tensor = nullptr;
  const AOTITorchError made = aoti_torch_empty_strided(1, &bytes, &kStride, aoti_torch_dtype_uint8(),
                                                       aoti_torch_device_type_cuda(), device, &tensor);
  static_cast<void>(aoti_torch_delete_cuda_stream_guard(current));
  if (made != AOTI_TORCH_SUCCESS) return {};
  void* at = nullptr;
  if (aoti_torch_get_data_ptr(tensor, &at) == AOTI_TORCH_SUCCESS) return {at, tensor};
  static_cast<void>(aoti_torch_delete_tensor_object(tensor));
  return {};
}

void Free(void* owner) { static_cast<void>(aoti_torch_delete_tensor_object(static_cast<AtenTensorHandle>(owner))); }

constexpr DeviceMemoryHook kTorchsMemory{&Allocate, &Free};

}  // namespace

void UseTorchsMemory() { SetDeviceMemoryHook(&kTorchsMemory); }

}  // namespace everlong::ops::gpu
