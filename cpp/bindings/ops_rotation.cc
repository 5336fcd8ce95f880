#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "everlong/kv/gather.h"
#include "everlong/kv/rotation.h"
#include "ops_arguments.h"
#include "ops_kernels.h"

namespace everlong::ops {
namespace {

// Return a contiguous copy that never shares storage with v.
Tensor ContiguousCopy(const Tensor& v) {
  Tensor copy = EmptyContiguous(v);
  torch::stable::copy_(copy, v);
  return copy;
}

// `out` must be contiguous.
kv::KeyRows KeyRowsOf(std::string_view op, const Tensor& k, const Tensor& out) {
  auto rows = RowsOf<kv::KeyRows>(op, k, out);
  rows.stride_b = k.stride(0);
  rows.stride_h = k.stride(1);
  rows.stride_t = k.stride(2);
  return rows;
}

}  // namespace

std::tuple<Tensor, Tensor> DerotateKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin,
                                      bool interleaved) {
  constexpr std::string_view kOp = "derotate_kv";
  RequireKeysAndValues(kOp, k, v);
  const PairPhases c = PairPhasesOf(kOp, k, "cos", cos, interleaved);
  const PairPhases s = PairPhasesOf(kOp, k, "sin", sin, interleaved);
  if (s.batch != c.batch || s.half != c.half) Reject(kOp, "sin", Describe(sin), "the shape of cos, " + Describe(cos));

  const Tensor keys = WithContiguousRows(k);
  const Tensor out = EmptyContiguous(k);
  kv::KeyRows rows = KeyRowsOf(kOp, keys, out);
  if (c.batch > 1) rows.batch = 1;  // each entry of the batch has its own positions
  for (int64_t b = 0; b < c.batch; ++b) {
    const int64_t first = b * rows.tokens * c.half;
    kv::DerotateRows(rows, c.values.data() + first, s.values.data() + first, c.half, PairingOf(interleaved));
    const auto element = static_cast<int64_t>(DTypeSize(rows.dtype));
    rows.in = static_cast<const char*>(rows.in) + rows.stride_b * element;
    rows.out = static_cast<char*>(rows.out) + rows.heads * rows.tokens * rows.head_dim * element;
  }
  return {out, ContiguousCopy(v)};
}

std::tuple<Tensor, Tensor> RerotateKv(const Tensor& k, const Tensor& v, const Tensor& new_pos_ids,
                                      const std::optional<Tensor>& inv_freq, double attention_scaling,
                                      bool interleaved) {
  constexpr std::string_view kOp = "rerotate_kv";
  RequireKeysAndValues(kOp, k, v);
  const std::vector<int64_t> positions = PositionsOf(kOp, k, "new_pos_ids", new_pos_ids, k.size(2));
  const kv::RopeTable rope = RopeOrDefault(kOp, k, inv_freq, attention_scaling, interleaved);
  const Tensor keys = WithContiguousRows(k);
  const Tensor out = EmptyContiguous(k);
  kv::RerotateRows(KeyRowsOf(kOp, keys, out), positions, rope);
  return {out, ContiguousCopy(v)};
}

void ShiftKv(const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, int64_t source, int64_t target,
             int64_t count, int64_t delta, const Tensor& inv_freq, bool interleaved) {
  constexpr std::string_view kOp = "shift_kv_";
  const kv::FrameKv frame = FrameOf(kOp, k, v);
  const kv::SlotPhase phase = PhaseOf(kOp, k, cos, sin, frame);
  const kv::RopeTable rope = RopeOf(kOp, k, inv_freq, 1.0, interleaved);
  ThrowIfError(kOp, kv::ShiftSlots(frame, phase, source, target, count, delta, rope));
}

void GatherKv(const Tensor& from_k, const Tensor& from_v, const Tensor& from_cos, const Tensor& from_sin,
              const Tensor& sources, const Tensor& to_k, const Tensor& to_v, const Tensor& to_cos, const Tensor& to_sin,
              const Tensor& targets, const Tensor& positions, const Tensor& inv_freq, double attention_scaling,
              bool interleaved) {
  constexpr std::string_view kOp = "gather_kv_";
  const kv::FrameKv from = FrameOf(kOp, from_k, from_v);
  const kv::SlotPhase from_phase = PhaseOf(kOp, from_k, from_cos, from_sin, from);
  const kv::FrameKv to = FrameOf(kOp, to_k, to_v);
  const kv::SlotPhase to_phase = PhaseOf(kOp, to_k, to_cos, to_sin, to);
  const kv::RopeTable rope = RopeOf(kOp, to_k, inv_freq, attention_scaling, interleaved);
  const int64_t rows = sources.numel();
  const std::vector<int64_t> source_slots = PositionsOf(kOp, from_k, "sources", sources, rows);
  const std::vector<int64_t> target_slots = PositionsOf(kOp, to_k, "targets", targets, rows);
  const std::vector<int64_t> places = PositionsOf(kOp, to_k, "positions", positions, rows);
  ThrowIfError(kOp, kv::GatherSlots(from, from_phase, source_slots, to, to_phase, target_slots, places, rope));
}

}  // namespace everlong::ops
