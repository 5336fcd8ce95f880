#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "../../hip/gather_kernels.h"
#include "../../hip/rotation_kernels.h"
#include "../../hip/shift_kernels.h"
#include "everlong/kv/gather.h"
#include "everlong/kv/rotation.h"
#include "ops_arguments.h"
#include "ops_gpu_device.h"
#include "ops_kernels.h"

namespace everlong::ops::gpu {
namespace {

hip::HeadRows HeadRowsOf(std::string_view op, const Tensor& k, const Tensor& out) {
  auto rows = RowsOf<hip::HeadRows>(op, k, out);
  rows.in_strides = {k.stride(0), k.stride(1), k.stride(2)};
  rows.out_strides = {out.stride(0), out.stride(1), out.stride(2)};
  return rows;
}

// A turn by `delta` positions without m, which the moved keys have already, as kv::ShiftSlots computes it.
struct HostTurn {
  std::vector<double> cos_sin;     // [2, half]
  std::vector<float> key_cos_sin;  // [2, half]

  HostTurn(int64_t delta, kv::RopeTable rope) : cos_sin(2 * rope.inv_freq.size()), key_cos_sin(cos_sin.size()) {
    const size_t half = rope.inv_freq.size();
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(delta) * rope.inv_freq[i];
      cos_sin[i] = std::cos(angle);
      cos_sin[half + i] = std::sin(angle);
    }
    rope.attention_scaling = 1.0;
    rope.CosSin(delta, std::span(key_cos_sin).first(half), std::span(key_cos_sin).last(half));
  }
};

}  // namespace

std::tuple<Tensor, Tensor> DerotateKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin,
                                      bool interleaved) {
  constexpr std::string_view kOp = "derotate_kv";
  const OnDeviceOf device(kOp, "k", k);
  RequireKeysAndValues(kOp, k, v);
  const PairPhases c = PairPhasesOf(kOp, k, "cos", cos, interleaved);
  const PairPhases s = PairPhasesOf(kOp, k, "sin", sin, interleaved);
  if (s.batch != c.batch || s.half != c.half) Reject(kOp, "sin", Describe(sin), "the shape of cos, " + Describe(cos));

  const Tensor device_cos = device.Upload(std::span(c.values));
  const Tensor device_sin = device.Upload(std::span(s.values));
  const int64_t batch_stride = c.batch > 1 ? k.size(2) * c.half : 0;
  const hip::PairPhase phase{
      DataOf<float>(device_cos), DataOf<float>(device_sin), c.half, interleaved, batch_stride, c.half};
  const Tensor keys = WithContiguousRows(k);
  const Tensor values = WithContiguousRows(v);
  const Tensor k_out = EmptyContiguous(k);
  const Tensor v_out = EmptyContiguous(v);
  device.Check(hip::DerotateKv(HeadRowsOf(kOp, keys, k_out), HeadRowsOf(kOp, values, v_out), phase, device.stream()));
  return {k_out, v_out};
}

std::tuple<Tensor, Tensor> RerotateKv(const Tensor& k, const Tensor& v, const Tensor& new_pos_ids,
                                      const std::optional<Tensor>& inv_freq, double attention_scaling,
                                      bool interleaved) {
  constexpr std::string_view kOp = "rerotate_kv";
  const OnDeviceOf device(kOp, "k", k);
  RequireKeysAndValues(kOp, k, v);
  const std::vector<int64_t> positions = PositionsOf(kOp, k, "new_pos_ids", new_pos_ids, k.size(2));
  const kv::RopeTable rope = RopeOrDefault(kOp, k, inv_freq, attention_scaling, interleaved);

  const Tensor device_positions = device.Upload(std::span(positions));
  const Tensor device_inv_freq = device.Upload(std::span(rope.inv_freq));
  const auto half = static_cast<int32_t>(rope.inv_freq.size());
  const Tensor workspace = device.Allocate(2 * k.size(2) * half * static_cast<int64_t>(sizeof(float)));
  const Tensor keys = WithContiguousRows(k);
  const Tensor values = WithContiguousRows(v);
  const Tensor k_out = EmptyContiguous(k);
  const Tensor v_out = EmptyContiguous(v);
  device.Check(hip::RerotateKv(HeadRowsOf(kOp, keys, k_out), HeadRowsOf(kOp, values, v_out),
                               DataOf<int64_t>(device_positions), DataOf<double>(device_inv_freq), half,
                               attention_scaling, interleaved, DataOf<float>(workspace), device.stream()));
  return {k_out, v_out};
}

void ShiftKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t source, int64_t target,
             int64_t count, int64_t delta, const Tensor& inv_freq, bool interleaved) {
  constexpr std::string_view kOp = "shift_kv_";
  const OnDeviceOf device(kOp, "k", k);
  const kv::FrameKv frame = FrameOf(kOp, k, v);
  const kv::SlotPhase phase = PhaseOf(kOp, k, cos, sin, frame);
  const kv::RopeTable rope = RopeOf(kOp, k, inv_freq, 1.0, interleaved);
  ThrowIfError(kOp, kv::ValidateShift(frame, phase, source, target, count, delta, rope));
  if (count == 0 || (source == target && delta == 0)) return;

  const HostTurn host_turn(delta, rope);
  const Tensor doubles = device.Upload(std::span(host_turn.cos_sin));
  const Tensor floats = device.Upload(std::span(host_turn.key_cos_sin));
  const hip::ShiftTurn turn{DataOf<double>(doubles),
                            DataOf<double>(doubles) + phase.half,
                            DataOf<float>(floats),
                            DataOf<float>(floats) + phase.half,
                            interleaved,
                            delta == 0};
  const hip::SlotShift shift{source, target, count};
  const Tensor workspace = device.Allocate(hip::ShiftWorkspaceBytes(frame, phase, shift));
  device.Check(hip::ShiftKv(frame, phase, shift, turn, workspace.mutable_data_ptr(), device.stream()));
}

void GatherKv(const Tensor& from_k, const Tensor& from_v, const Tensor& from_cos, const Tensor& from_sin,
              const Tensor& sources, const Tensor& to_k, const Tensor& to_v, const Tensor& to_cos, const Tensor& to_sin,
              const Tensor& targets, const Tensor& positions, const Tensor& inv_freq, double attention_scaling,
              bool interleaved) {
  constexpr std::string_view kOp = "gather_kv_";
  const OnDeviceOf device(kOp, "to_k", to_k);
  RequireDeviceOf(kOp, to_k, "from_k", from_k);
  const kv::FrameKv from = FrameOf(kOp, from_k, from_v);
  const kv::SlotPhase from_phase = PhaseOf(kOp, from_k, from_cos, from_sin, from);
  const kv::FrameKv to = FrameOf(kOp, to_k, to_v);
  const kv::SlotPhase to_phase = PhaseOf(kOp, to_k, to_cos, to_sin, to);
  const kv::RopeTable rope = RopeOf(kOp, to_k, inv_freq, attention_scaling, interleaved);
  const int64_t rows = sources.numel();
  const std::vector<int64_t> source_slots = PositionsOf(kOp, from_k, "sources", sources, rows);
  const std::vector<int64_t> target_slots = PositionsOf(kOp, to_k, "targets", targets, rows);
  const std::vector<int64_t> places = PositionsOf(kOp, to_k, "positions", positions, rows);
  ThrowIfError(kOp, kv::ValidateGather(from, from_phase, source_slots, to, to_phase, target_slots, places, rope));
  if (rows == 0) return;

  // One table, because each upload costs microseconds: sources, targets, positions, and the frequencies' bits.
  std::vector<int64_t> table;
  table.reserve(3 * source_slots.size() + rope.inv_freq.size());
  for (const std::vector<int64_t>* numbers : {&source_slots, &target_slots, &places}) {
    table.insert(table.end(), numbers->begin(), numbers->end());
  }
  for (const double frequency : rope.inv_freq) table.push_back(std::bit_cast<int64_t>(frequency));
  const Tensor device_table = device.Upload(std::span<const int64_t>(table));
  const auto* numbers = DataOf<int64_t>(device_table);
  const hip::SlotGather gather{numbers, numbers + rows, numbers + 2 * rows, rows};
  const hip::TakenRope taken{static_cast<const double*>(static_cast<const void*>(numbers + 3 * rows)),
                             attention_scaling, interleaved};
  const Tensor workspace = device.Allocate(2 * rows * from_phase.half * static_cast<int64_t>(sizeof(float)));
  device.Check(hip::GatherKv(from, from_phase, to, to_phase, gather, taken, DataOf<float>(workspace), device.stream()));
}

}  // namespace everlong::ops::gpu
