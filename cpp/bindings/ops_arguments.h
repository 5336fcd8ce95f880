// Checked views of tensors for the core. A tensor that does not fit becomes a std::runtime_error (in Python a
// RuntimeError) that names operator and argument, its value, and what was expected.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/dtype.h"
#include "everlong/base/status.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/rope_table.h"
#include "everlong/weights/block_matrix.h"

namespace everlong::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throw "<op>: <argument> is <value>; expected <expected>".
[[noreturn]] void Reject(std::string_view op, std::string_view argument, const std::string& value,
                         std::string_view expected);
void ThrowIfError(std::string_view op, const Status& status);

// Return e.g. "bfloat16 [1, 2, 30, 64] on the CPU".
std::string Describe(const Tensor& tensor);

// Require that all tensors of a call are on the device of its k.
void RequireDeviceOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor);
// Return a tensor for the host: contiguous, on the CPU. It may come from there for any device of k, which saves a wait.
Tensor HostTensor(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor);

// Return an int64 argument as the core's int32.
int32_t RequireInt32(std::string_view op, std::string_view argument, int64_t value, int64_t at_least);

// Return the type: float32, float16 or bfloat16.
DType ElementType(std::string_view op, std::string_view argument, const Tensor& tensor);
// Require k, v of one shape [B or L, Hkv, T or F, D], element type and device.
void RequireKeysAndValues(std::string_view op, const Tensor& k, const Tensor& v);

// Return a contiguous tensor of the shape and type of another, uninitialised.
Tensor EmptyContiguous(const Tensor& k);
// Return k itself if its last dimension is contiguous, else a contiguous copy.
Tensor WithContiguousRows(const Tensor& k);

// Return rows of k [B, Hkv, T, D], whose D elements are contiguous, and of `out`. The caller sets the strides. Rows is
// kv::KeyRows or hip::HeadRows.
template <class Rows>
Rows RowsOf(std::string_view op, const Tensor& k, const Tensor& out) {
  Rows rows;
  rows.in = k.const_data_ptr();
  rows.out = out.mutable_data_ptr();
  rows.dtype = ElementType(op, "k", k);
  rows.batch = k.size(0);
  rows.heads = k.size(1);
  rows.tokens = k.size(2);
  rows.head_dim = static_cast<int32_t>(k.size(3));
  return rows;
}

// Return a view of k, v [L, Hkv, F, D]: [F, D] contiguous, the same strides, no row twice.
kv::FrameKv FrameOf(std::string_view op, const Tensor& k, const Tensor& v);
// Return a view of blocks uint8 [N, bytes of a row], in a format of block_format.h.
weights::BlockMatrix MatrixOf(std::string_view op, const Tensor& blocks, int64_t format);
// Return a view of cos, sin [F, rotary_dim / 2] fp32, contiguous.
kv::SlotPhase PhaseOf(std::string_view op, const Tensor& k, const Tensor& cos, const Tensor& sin,
                      const kv::FrameKv& frame);
// Make the table of inv_freq [rotary_dim / 2] fp64, or fp32, which is widened.
kv::RopeTable RopeOf(std::string_view op, const Tensor& k, const Tensor& inv_freq, double attention_scaling,
                     bool interleaved);
// Do the same, or without inv_freq make RoFormer's own table over the whole head: 10000^(-2i / D), in fp64.
kv::RopeTable RopeOrDefault(std::string_view op, const Tensor& k, const std::optional<Tensor>& inv_freq,
                            double attention_scaling, bool interleaved);
// Require that `tokens` is a span of the frame: 0 to F.
void RequireTokens(std::string_view op, int64_t tokens, const kv::FrameKv& frame);

inline kv::Pairing PairingOf(bool interleaved) {
  return interleaved ? kv::Pairing::kInterleaved : kv::Pairing::kHalfSplit;
}

// Return a 1-D int64 tensor of `length` positions.
std::vector<int64_t> PositionsOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor,
                                 int64_t length);

// cos or sin as a transformers rotary embedding returns it, as one number a pair: [1 or B, T, rotary_dim / 2] fp32. It
// comes as [T, rotary_dim] or [1 or B, T, rotary_dim] of any floating-point type. The two numbers of a pair are equal.
// They are half a row apart (Llama, GLM) or, in interleaved models only, side by side (Cohere), as that equality tells.
struct PairPhases {
  std::vector<float> values;
  int64_t batch = 0;  // 1 or B
  int32_t half = 0;
};
PairPhases PairPhasesOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor,
                        bool interleaved);

}  // namespace everlong::ops
