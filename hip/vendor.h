// One kernel source for hipcc and nvcc: the few runtime names that are used here, under HIP's names. hipcc has its own.
// For nvcc they are defined here, because HIP's headers for NVIDIA lag behind CUDA.
#pragma once

#if defined(__HIPCC__)

#include <hip/hip_runtime.h>

#elif defined(__CUDACC__)

#include <cuda_runtime.h>

using hipError_t = cudaError_t;
using hipEvent_t = cudaEvent_t;
using hipStream_t = cudaStream_t;
inline constexpr auto hipDeviceAttributePageableMemoryAccess = cudaDevAttrPageableMemoryAccess;
inline constexpr hipError_t hipErrorNoBinaryForGpu = cudaErrorNoKernelImageForDevice;
inline constexpr hipError_t hipErrorNotReady = cudaErrorNotReady;
inline constexpr auto hipEventDisableTiming = cudaEventDisableTiming;
inline constexpr auto hipMemcpyDefault = cudaMemcpyDefault;
inline constexpr auto hipMemcpyDeviceToDevice = cudaMemcpyDeviceToDevice;
inline constexpr auto hipMemcpyDeviceToHost = cudaMemcpyDeviceToHost;
inline constexpr auto hipMemcpyHostToDevice = cudaMemcpyHostToDevice;
inline constexpr auto hipStreamNonBlocking = cudaStreamNonBlocking;
inline constexpr auto hipHostMallocDefault = cudaHostAllocDefault;

inline hipError_t hipGetLastError() { return cudaGetLastError(); }
inline const char* hipGetErrorString(hipError_t error) { return cudaGetErrorString(error); }
inline hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, hipStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, stream);
}
inline hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  return cudaMemsetAsync(to, value, bytes, stream);
}
inline hipError_t hipGetDevice(int* device) { return cudaGetDevice(device); }
inline hipError_t hipSetDevice(int device) { return cudaSetDevice(device); }
inline hipError_t hipDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);
}
inline hipError_t hipMalloc(void** buffer, size_t bytes) { return cudaMalloc(buffer, bytes); }
inline hipError_t hipFree(void* buffer) { return cudaFree(buffer); }
inline hipError_t hipHostMalloc(void** buffer, size_t bytes, unsigned int flags) {
  return cudaHostAlloc(buffer, bytes, flags);
}
inline hipError_t hipHostFree(void* buffer) { return cudaFreeHost(buffer); }
inline hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithFlags(stream, flags);
}
inline hipError_t hipStreamDestroy(hipStream_t stream) { return cudaStreamDestroy(stream); }
inline hipError_t hipStreamSynchronize(hipStream_t stream) { return cudaStreamSynchronize(stream); }
inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
  return cudaStreamWaitEvent(stream, event, flags);
}
inline hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags) {
  return cudaEventCreateWithFlags(event, flags);
}
inline hipError_t hipEventDestroy(hipEvent_t event) { return cudaEventDestroy(event); }
inline hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) { return cudaEventRecord(event, stream); }
inline hipError_t hipEventQuery(hipEvent_t event) { return cudaEventQuery(event); }
inline hipError_t hipEventSynchronize(hipEvent_t event) { return cudaEventSynchronize(event); }

#else
#error "compile with hipcc or nvcc (hip/compile_kernel.sh)"
#endif
