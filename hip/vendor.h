// One kernel source for hipcc and nvcc: the few runtime names that the kernels use, under HIP's names. hipcc brings its
// own; for nvcc they stand here, because HIP's headers for NVIDIA lag behind CUDA.
#pragma once

#if defined(__HIPCC__)

#include <hip/hip_runtime.h>

#elif defined(__CUDACC__)

#include <cuda_runtime.h>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
inline hipError_t hipGetLastError() { return cudaGetLastError(); }

#else
#error "compile with hipcc or nvcc (hip/compile.sh)"
#endif
