// Registration of torch.ops.everlong.* over torch's stable ABI. Fakes and typed wrappers are in python/everlong/ops.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>

#include "everlong/base/parallel_for.h"
#include "ops_kernels.h"

namespace {

// Run the core's loops on torch's own threads, so that a process has one pool.
void TorchParallelFor(int64_t begin, int64_t end, int64_t grain, const void* context, everlong::ParallelBody body) {
  torch::stable::parallel_for(begin, end, grain, [=](int64_t first, int64_t last) { body(context, first, last); });
}

}  // namespace

STABLE_TORCH_LIBRARY(everlong, m) {
  everlong::SetParallelForHook(&TorchParallelFor);
  m.def("derotate_kv(Tensor k, Tensor v, Tensor cos, Tensor sin, bool interleaved=False) -> (Tensor, Tensor)");
  m.def(
      "rerotate_kv(Tensor k, Tensor v, Tensor new_pos_ids, Tensor? inv_freq=None, float attention_scaling=1.0, "
      "bool interleaved=False) -> (Tensor, Tensor)");
  m.def(
      "shift_kv_(Tensor(a!) k, Tensor(b!) v, Tensor(c!) cos, Tensor(d!) sin, int source, int target, int count, "
      "int delta, Tensor inv_freq, bool interleaved=False) -> ()");
  m.def(
      "gather_kv_(Tensor from_k, Tensor from_v, Tensor from_cos, Tensor from_sin, Tensor sources, Tensor(a!) to_k, "
      "Tensor(b!) to_v, Tensor(c!) to_cos, Tensor(d!) to_sin, Tensor targets, Tensor positions, Tensor inv_freq, "
      "float attention_scaling=1.0, bool interleaved=False) -> ()");
  m.def(
      "archive_kv(Tensor k, Tensor v, Tensor cos, Tensor sin, int first_slot, int tokens, int page_tokens, str codec, "
      "bool interleaved=False) -> Tensor");
  // It returns nothing: an operator that torch.compile can trace must not return an argument.
  m.def(
      "archive_kv.out(Tensor k, Tensor v, Tensor cos, Tensor sin, int first_slot, int tokens, int page_tokens, "
      "str codec, bool interleaved=False, *, Tensor(a!) out, Tensor(b!)? refused=None) -> ()");
  m.def(
      "require_archived(Tensor refused, int layers, int kv_heads, int head_dim, int first_slot, int page_tokens, "
      "str codec) -> ()");
  m.def(
      "restore_kv(Tensor payload, Tensor placements, Tensor(a!) k, Tensor(b!) v, Tensor(c!) cos, Tensor(d!) sin, "
      "int page_tokens, str codec, Tensor inv_freq, float attention_scaling=1.0, bool interleaved=False) -> ()");
  m.def("encode_kv(Tensor k, Tensor v, int page_tokens, str codec) -> Tensor");
  m.def(
      "decode_kv(Tensor payload, int layers, int kv_heads, int tokens, int head_dim, int page_tokens, str codec, "
      "ScalarType dtype) -> (Tensor, Tensor)");
  m.def("block_linear(Tensor x, Tensor blocks, int format, Tensor? bias=None) -> Tensor");
  m.def("block_rows(Tensor blocks, Tensor ids, int format, ScalarType dtype) -> Tensor");
  m.def(
      "decode_tokens_(Tensor(a!) hidden, Tensor[] matrices, Tensor[] vectors, int[] formats, Tensor(b!)[] k, "
      "Tensor(c!)[] v, int[] spans, Tensor cos, Tensor sin, float epsilon, float scale) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(everlong, CPU, m) {
  m.impl("derotate_kv", TORCH_BOX(&everlong::ops::DerotateKv));
  m.impl("rerotate_kv", TORCH_BOX(&everlong::ops::RerotateKv));
  m.impl("shift_kv_", TORCH_BOX(&everlong::ops::ShiftKv));
  m.impl("gather_kv_", TORCH_BOX(&everlong::ops::GatherKv));
  m.impl("archive_kv", TORCH_BOX(&everlong::ops::ArchiveKv));
  m.impl("archive_kv.out", TORCH_BOX(&everlong::ops::ArchiveKvOut));
  m.impl("require_archived", TORCH_BOX(&everlong::ops::RequireArchived));
  m.impl("restore_kv", TORCH_BOX(&everlong::ops::RestoreKv));
  m.impl("encode_kv", TORCH_BOX(&everlong::ops::EncodeKv));
  m.impl("decode_kv", TORCH_BOX(&everlong::ops::DecodeKv));
  m.impl("block_linear", TORCH_BOX(&everlong::ops::BlockLinear));
  m.impl("block_rows", TORCH_BOX(&everlong::ops::BlockRows));
  m.impl("decode_tokens_", TORCH_BOX(&everlong::ops::DecodeTokens));
}
