#include <cstddef>
#include <cstdint>

// clang-format off
#include "vendor.h"  // first: the units are device code here
// clang-format on

#include "grid.h"
#include "rotation_kernels.h"
#include "shift_kernels.h"
#include "shift_units.h"

namespace everlong::hip {
namespace {

// Compute cos_out, sin_out [count, half].
__global__ void __launch_bounds__(kBlockThreads) ComposePhases(kv::SlotPhase phase, SlotShift shift, ShiftTurn turn,
                                                               Divisor by_half, float* cos_out, float* sin_out) {
  for (int64_t i = FirstIndex(); i < shift.count * phase.half; i += IndexStride()) {
    ComposePhase(i, phase, shift.source, turn, by_half, cos_out, sin_out);
  }
}

constexpr int32_t kChainBlocks = 4;  // fewest blocks of threads that a multiprocessor holds, by their registers

// Chains of one head (along y) of one layer (along z). Along x are those of keys, of values, and of the slots' phases.
template <class Element, int32_t kWidth, bool kInterleaved>
__global__ void __launch_bounds__(kBlockThreads, kChainBlocks)
    ShiftChainsOf(kv::FrameKv frame, kv::SlotPhase phase, ShiftChains chains, ShiftTurn turn, PairPhase keys,
                  uint32_t key_blocks, uint32_t value_blocks, Divisor by_key, Divisor by_value, Divisor by_half) {
  const auto head = static_cast<int32_t>(blockIdx.y);
  const auto layer = static_cast<int32_t>(blockIdx.z);
  const int64_t index = FirstIndex();
  if (blockIdx.x < key_blocks) {
    ShiftUnits<Element, kWidth, kInterleaved, true>(index, head, layer, chains, frame, keys, by_key);
  } else if (blockIdx.x < key_blocks + value_blocks) {
    ShiftUnits<Element, kWidth, false, false>(index - int64_t{key_blocks} * kBlockThreads, head, layer, chains, frame,
                                              PairPhase{}, by_value);
  } else if (head == 0 && layer == 0) {
    ShiftPhases(index - (int64_t{key_blocks} + value_blocks) * kBlockThreads, chains, phase, turn, by_half);
  }
}

template <class Element, int32_t kWidth>
LaunchStatus LaunchChains(const kv::FrameKv& frame, const kv::SlotPhase& phase, const ShiftChains& chains,
                          const ShiftTurn& turn, const PairPhase& keys, hipStream_t stream) {
  const int32_t units_of_key = UnitsPerRow(frame.head_dim, keys.half, kWidth);
  const int32_t units_of_value = UnitsPerRow(frame.head_dim, 0, kWidth);
  const uint32_t key_blocks = BlocksOf(chains.chains * units_of_key);
  const uint32_t value_blocks = BlocksOf(chains.chains * units_of_value);
  const uint32_t phase_blocks = BlocksOf(chains.chains * phase.half);
  const dim3 blocks(key_blocks + value_blocks + phase_blocks, static_cast<uint32_t>(frame.kv_heads),
                    static_cast<uint32_t>(frame.layers));
  const Divisor by_key(units_of_key);
  const Divisor by_value(units_of_value);
  const Divisor by_half(phase.half > 0 ? phase.half : 1);
  const dim3 threads(kBlockThreads);
  if (keys.interleaved) {
    ShiftChainsOf<Element, kWidth, true><<<blocks, threads, 0, stream>>>(frame, phase, chains, turn, keys, key_blocks,
                                                                         value_blocks, by_key, by_value, by_half);
  } else {
    ShiftChainsOf<Element, kWidth, false><<<blocks, threads, 0, stream>>>(frame, phase, chains, turn, keys, key_blocks,
                                                                          value_blocks, by_key, by_value, by_half);
  }
  return Launched();
}

LaunchStatus StageRows(const kv::FrameKv& frame, void* base, const SlotShift& step, const PairPhase& phase,
                       void* workspace, void* stream) {
  const HeadRows rows = SlotRows(frame, base, step.source, step.target, step.count);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(RotateRows(ToWorkspace(rows, workspace), phase, stream));
  return RotateRows(FromWorkspace(rows, workspace), PairPhase{}, stream);
}

LaunchStatus ShiftStaged(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift,
                         const ShiftTurn& turn, const PairPhase& keys, void* workspace, void* stream) {
  for (const SlotShift& step : StagedSteps(shift)) {
    EVERLONG_RETURN_IF_NOT_LAUNCHED(StageRows(frame, frame.k, step, keys, workspace, stream));
    EVERLONG_RETURN_IF_NOT_LAUNCHED(StageRows(frame, frame.v, step, PairPhase{}, workspace, stream));
  }
  const int64_t phases = shift.count * phase.half;
  if (phases == 0) return 0;
  const auto on = static_cast<hipStream_t>(stream);
  auto* cos = static_cast<float*>(workspace);
  float* sin = cos + phases;
  ComposePhases<<<BlocksFor(phases), dim3(kBlockThreads), 0, on>>>(phase, shift, turn, Divisor(phase.half), cos, sin);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(Launched());
  const size_t bytes = static_cast<size_t>(phases) * sizeof(float);
  const int64_t target = shift.target * phase.half;
  const hipError_t copied = hipMemcpyAsync(phase.cos + target, cos, bytes, hipMemcpyDeviceToDevice, on);
  if (copied != hipError_t{}) return static_cast<LaunchStatus>(copied);
  return static_cast<LaunchStatus>(hipMemcpyAsync(phase.sin + target, sin, bytes, hipMemcpyDeviceToDevice, on));
}

}  // namespace

int64_t ShiftWorkspaceBytes(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift) {
  if (!IsStaged(shift)) return 0;
  const int64_t rows = int64_t{frame.layers} * frame.kv_heads * std::min(shift.count, kStagedRows);
  const int64_t staged = rows * frame.head_dim * static_cast<int64_t>(DTypeSize(frame.dtype));
  const int64_t phases = 2 * shift.count * phase.half * static_cast<int64_t>(sizeof(float));
  return std::max(staged, phases);  // one after the other on the stream
}

LaunchStatus ShiftKv(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift,
                     const ShiftTurn& turn, void* workspace, void* stream) {
  if (shift.count == 0) return 0;
  const PairPhase keys{turn.key_cos, turn.key_sin, turn.is_identity ? 0 : phase.half, turn.interleaved, 0, 0};
  if (IsStaged(shift)) return ShiftStaged(frame, phase, shift, turn, keys, workspace, stream);
  const ShiftChains chains(shift);
  return WithElement(frame.dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr int32_t kWidth = kVectorWidth<Element>;
    const auto on = static_cast<hipStream_t>(stream);
    if (AllowsVectors(frame, keys.half, kWidth)) {
      return LaunchChains<Element, kWidth>(frame, phase, chains, turn, keys, on);
    }
    return LaunchChains<Element, 1>(frame, phase, chains, turn, keys, on);
  });
}

}  // namespace everlong::hip
