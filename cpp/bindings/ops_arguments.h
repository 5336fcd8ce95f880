// Tensors as the core's raw views, checked: what does not fit becomes a std::runtime_error (in Python a RuntimeError)
// that names operator and argument, its value, and what was expected.
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

namespace everlong::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws "<op>: <argument> is <value>; expected <expected>".
[[noreturn]] void Reject(std::string_view op, std::string_view argument, const std::string& value,
                         std::string_view expected);
void ThrowIfError(std::string_view op, const Status& status);

// "bfloat16 [1, 2, 30, 64] on the CPU"
std::string Describe(const Tensor& tensor);

// All tensors of a call lie on the device of its k.
void RequireDeviceOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor);
// What the host reads of a call: a contiguous tensor on the CPU. It may lie there whatever k's device is, which saves a
// wait for the device.
Tensor HostTensor(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor);

// int32 values of the core that come as int64.
int32_t RequireInt32(std::string_view op, std::string_view argument, int64_t value, int64_t at_least);

// float32, float16 or bfloat16.
DType ElementType(std::string_view op, std::string_view argument, const Tensor& tensor);
// k, v of one shape [B or L, Hkv, T or F, D], element type and device.
void RequireKeysAndValues(std::string_view op, const Tensor& k, const Tensor& v);

// Contiguous tensors of the shape and type of another, uninitialised; k itself when its last dimension is contiguous.
Tensor EmptyContiguous(const Tensor& k);
Tensor WithContiguousRows(const Tensor& k);

// Rows of k [B, Hkv, T, D] whose D elements are contiguous, and of `out`; the strides are the caller's to set. Rows:
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

// k, v [L, Hkv, F, D]: [F, D] contiguous, the same strides, no row twice.
kv::FrameKv FrameOf(std::string_view op, const Tensor& k, const Tensor& v);
// cos, sin [F, rotary_dim / 2] fp32, contiguous.
kv::SlotPhase PhaseOf(std::string_view op, const Tensor& k, const Tensor& cos, const Tensor& sin,
                      const kv::FrameKv& frame);
// inv_freq [rotary_dim / 2] fp64, or fp32, which is widened.
kv::RopeTable RopeOf(std::string_view op, const Tensor& k, const Tensor& inv_freq, double attention_scaling,
                     bool interleaved);
// RoFormer's own table over the whole of a head where none is given: 10000^(-2i / D), in fp64.
kv::RopeTable RopeOrDefault(std::string_view op, const Tensor& k, const std::optional<Tensor>& inv_freq,
                            double attention_scaling, bool interleaved);
// Tokens of a span of the frame: 0 to F.
void RequireTokens(std::string_view op, int64_t tokens, const kv::FrameKv& frame);

inline kv::Pairing PairingOf(bool interleaved) {
  return interleaved ? kv::Pairing::kInterleaved : kv::Pairing::kHalfSplit;
}

// A 1-D int64 tensor of `length` positions.
std::vector<int64_t> PositionsOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor,
                                 int64_t length);

// cos or sin as a transformers rotary embedding returns it, [T, rotary_dim] or [1 or B, T, rotary_dim] of any
// floating-point type, as one number a pair: [1 or B, T, rotary_dim / 2] fp32. The two numbers of a pair are equal;
// they stand half a row apart (Llama, GLM) or, interleaved models only, side by side (Cohere): told apart by that
// equality.
struct PairPhases {
  std::vector<float> values;
  int64_t batch = 0;  // 1 or B
  int32_t half = 0;
};
PairPhases PairPhasesOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor,
                        bool interleaved);

}  // namespace everlong::ops
