#include <cstddef>
#include <cstdint>

#include "grid.h"
#include "rotation_kernels.h"
#include "shift_kernels.h"
#include "shift_units.h"
#include "vendor.h"

namespace everlong::hip {
namespace {

// cos_out, sin_out [count, half].
__global__ void __launch_bounds__(kBlockThreads) ComposePhases(kv::SlotPhase phase, SlotShift shift, ShiftTurn turn,
                                                               Divisor by_half, float* cos_out, float* sin_out) {
  for (int64_t i = FirstIndex(); i < shift.count * phase.half; i += IndexStride()) {
    ComposePhase(i, phase, shift.source, turn, by_half, cos_out, sin_out);
  }
}

LaunchStatus MoveRows(const kv::FrameKv& frame, void* base, const ShiftStep& step, const PairPhase& phase,
                      void* workspace, void* stream) {
  const HeadRows rows = SlotRows(frame, base, step.source, step.target, step.count);
  if (!step.staged) return RotateRows(rows, phase, stream);
  EVERLONG_RETURN_IF_NOT_LAUNCHED(RotateRows(ToWorkspace(rows, workspace), phase, stream));
  return RotateRows(FromWorkspace(rows, workspace), PairPhase{}, stream);
}

}  // namespace

int64_t ShiftWorkspaceBytes(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift) {
  const int64_t rows = static_cast<int64_t>(frame.layers) * frame.kv_heads * StagedRows(shift);
  const int64_t staged = rows * frame.head_dim * static_cast<int64_t>(DTypeSize(frame.dtype));
  const int64_t phases = 2 * shift.count * phase.half * static_cast<int64_t>(sizeof(float));
  return std::max(staged, phases);  // one after the other on the stream
}

LaunchStatus ShiftKv(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift,
                     const ShiftTurn& turn, void* workspace, void* stream) {
  const PairPhase by{turn.key_cos, turn.key_sin, turn.is_identity ? 0 : phase.half, turn.interleaved, 0, 0};
  for (const ShiftStep& step : ShiftSteps(shift)) {
    EVERLONG_RETURN_IF_NOT_LAUNCHED(MoveRows(frame, frame.k, step, by, workspace, stream));
    EVERLONG_RETURN_IF_NOT_LAUNCHED(MoveRows(frame, frame.v, step, PairPhase{}, workspace, stream));
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

}  // namespace everlong::hip
