#include <algorithm>
#include <cstdint>

#include "rotation_kernels.h"
#include "rotation_units.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

constexpr int32_t kBlockThreads = 256;
constexpr int64_t kMostBlocks = 1 << 20;  // threads stride over what is left

template <class Element, int32_t kWidth, Turn kTurn, bool kInterleaved>
__global__ void __launch_bounds__(kBlockThreads) RotateUnits(HeadRows rows, PairPhase phase) {
  const int64_t units = UnitCount(rows, phase.half, kWidth);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < units; i += threads) {
    ProcessUnit<Element, kWidth, kTurn, kInterleaved>(i, rows, phase);
  }
}

// cos, sin [T, half] of m R(position): the angle in fp64, as kv::RopeTable::CosSin computes it.
__global__ void __launch_bounds__(kBlockThreads)
    ComputePhase(const int64_t* positions, const double* inv_freq, int64_t tokens, int32_t half,
                 double attention_scaling, float* cos_out, float* sin_out) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < tokens * half; i += threads) {
    const double angle = static_cast<double>(positions[i / half]) * inv_freq[i % half];
    cos_out[i] = static_cast<float>(::cos(angle) * attention_scaling);
    sin_out[i] = static_cast<float>(::sin(angle) * attention_scaling);
  }
}

dim3 BlocksFor(int64_t work) {
  return dim3(static_cast<uint32_t>(std::min((work + kBlockThreads - 1) / kBlockThreads, kMostBlocks)));
}

template <class Element, int32_t kWidth, Turn kTurn>
hipError_t LaunchUnits(const HeadRows& rows, const PairPhase& phase, hipStream_t stream) {
  const int64_t units = UnitCount(rows, phase.half, kWidth);
  if (units == 0) return hipError_t{};
  if (phase.interleaved) {
    RotateUnits<Element, kWidth, kTurn, true><<<BlocksFor(units), dim3(kBlockThreads), 0, stream>>>(rows, phase);
  } else {
    RotateUnits<Element, kWidth, kTurn, false><<<BlocksFor(units), dim3(kBlockThreads), 0, stream>>>(rows, phase);
  }
  return hipGetLastError();
}

template <class Element, Turn kTurn>
hipError_t LaunchElement(const HeadRows& rows, const PairPhase& phase, hipStream_t stream) {
  constexpr int32_t kWidth = kVectorWidth<Element>;
  if (AllowsVectors(rows, phase.half, kWidth)) return LaunchUnits<Element, kWidth, kTurn>(rows, phase, stream);
  return LaunchUnits<Element, 1, kTurn>(rows, phase, stream);
}

template <Turn kTurn>
hipError_t LaunchRows(const HeadRows& rows, const PairPhase& phase, hipStream_t stream) {
  switch (rows.dtype) {
    case DType::kFloat32:
      return LaunchElement<Float32Element, kTurn>(rows, phase, stream);
    case DType::kFloat16:
      return LaunchElement<Float16Element, kTurn>(rows, phase, stream);
    case DType::kBFloat16:
      return LaunchElement<BFloat16Element, kTurn>(rows, phase, stream);
  }
  return hipError_t{};
}

template <Turn kTurn>
LaunchStatus LaunchKeysAndValues(const HeadRows& k, const HeadRows& v, const PairPhase& phase, hipStream_t stream) {
  const hipError_t keys = LaunchRows<kTurn>(k, phase, stream);
  if (keys != hipError_t{}) return static_cast<LaunchStatus>(keys);
  // Values: a head without rotated pairs is copied.
  return static_cast<LaunchStatus>(LaunchRows<kTurn>(v, PairPhase{}, stream));
}

}  // namespace

LaunchStatus DerotateKv(const HeadRows& k, const HeadRows& v, const PairPhase& phase, void* stream) {
  return LaunchKeysAndValues<Turn::kOff>(k, v, phase, static_cast<hipStream_t>(stream));
}

LaunchStatus RerotateKv(const HeadRows& k, const HeadRows& v, const int64_t* positions, const double* inv_freq,
                        int32_t half, double attention_scaling, bool interleaved, float* workspace, void* stream) {
  const auto on = static_cast<hipStream_t>(stream);
  const int64_t angles = k.tokens * half;
  float* sin = workspace + angles;
  if (angles > 0) {
    ComputePhase<<<BlocksFor(angles), dim3(kBlockThreads), 0, on>>>(positions, inv_freq, k.tokens, half,
                                                                    attention_scaling, workspace, sin);
    if (const hipError_t launched = hipGetLastError(); launched != hipError_t{}) {
      return static_cast<LaunchStatus>(launched);
    }
  }
  return LaunchKeysAndValues<Turn::kOn>(k, v, {workspace, sin, half, interleaved, 0}, on);
}

}  // namespace everlong::hip
