#include "ops_arguments.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "everlong/base/element.h"
#include "ops_results.h"

namespace everlong::ops {
namespace {

std::string ShapeText(const Tensor& tensor) {
  std::ostringstream text;
  text << '[';
  for (int64_t d = 0; d < tensor.dim(); ++d) text << (d == 0 ? "" : ", ") << tensor.size(d);
  text << ']';
  return text.str();
}

std::string DeviceName(const Tensor& tensor) {
  if (tensor.is_cpu()) return "the CPU";
  return tensor.is_cuda() ? "cuda:" + std::to_string(tensor.get_device_index()) : "another device";
}

bool OnOneDevice(const Tensor& a, const Tensor& b) {
  if (a.is_cpu() || b.is_cpu()) return a.is_cpu() && b.is_cpu();
  return a.device() == b.device();
}

std::string StrideText(const Tensor& tensor) {
  std::ostringstream text;
  text << "strides [";
  for (int64_t d = 0; d < tensor.dim(); ++d) text << (d == 0 ? "" : ", ") << tensor.stride(d);
  text << ']';
  return text.str();
}

// Return whether no two elements of k [L, Hkv, F, D], rows of F * D contiguous elements, share a place.
bool RowsAreDisjoint(const Tensor& k) {
  struct Dimension {
    int64_t size, stride;
  };
  Dimension inner{k.size(1), k.stride(1)};
  Dimension outer{k.size(0), k.stride(0)};
  if (inner.size == 1) inner.stride = 0;
  if (outer.size == 1) outer.stride = 0;
  if (inner.stride > outer.stride) std::swap(inner, outer);
  const int64_t row = k.size(2) * k.size(3);
  const bool inner_fits = inner.size == 1 || inner.stride >= row;
  return inner_fits && (outer.size == 1 || outer.stride >= (inner.size - 1) * inner.stride + row);
}

// Return all numbers of a contiguous floating-point tensor, as fp32.
std::vector<float> FloatValues(std::string_view op, std::string_view argument, const Tensor& tensor) {
  const auto count = static_cast<size_t>(tensor.numel());
  std::vector<float> values(count);
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      if (count > 0) std::memcpy(values.data(), data, count * sizeof(float));
      break;
    case ScalarType::Double:
      std::transform(static_cast<const double*>(data), static_cast<const double*>(data) + count, values.begin(),
                     [](double value) { return static_cast<float>(value); });
      break;
    case ScalarType::Half:
      std::transform(static_cast<const uint16_t*>(data), static_cast<const uint16_t*>(data) + count, values.begin(),
                     Float16ToFloat);
      break;
    case ScalarType::BFloat16:
      std::transform(static_cast<const uint16_t*>(data), static_cast<const uint16_t*>(data) + count, values.begin(),
                     BFloat16ToFloat);
      break;
    default:
      Reject(op, argument, Describe(tensor), "float64, float32, float16 or bfloat16");
  }
  return values;
}

// Return whether in every row of `width` numbers, number first(i) equals number second(i) for each pair i.
template <class First, class Second>
bool PairsAreEqual(const std::vector<float>& rows, size_t width, const First& first, const Second& second) {
  for (size_t row = 0; row < rows.size(); row += width) {
    for (size_t i = 0; i < width / 2; ++i) {
      if (rows[row + first(i)] != rows[row + second(i)]) return false;
    }
  }
  return true;
}

constexpr double kDefaultTheta = 10000.0;

kv::RopeTable TableOf(std::string_view op, const Tensor& k, std::vector<double> inv_freq, double attention_scaling,
                      bool interleaved) {
  kv::RopeTable rope;
  rope.inv_freq = std::move(inv_freq);
  rope.attention_scaling = attention_scaling;
  rope.pairing = PairingOf(interleaved);
  ThrowIfError(op, kv::Validate(rope, RequireInt32(op, "k's last size (head_dim)", k.size(3), 1)));
  return rope;
}

}  // namespace

void Reject(std::string_view op, std::string_view argument, const std::string& value, std::string_view expected) {
  std::string message(op);
  message.append(": ").append(argument).append(" is ").append(value).append("; expected ").append(expected);
  throw std::runtime_error(message);
}

void ThrowIfError(std::string_view op, const Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(op) + ": " + status.message());
}

std::string Describe(const Tensor& tensor) {
  std::string text(torch::headeronly::toString(tensor.scalar_type()));
  return text + " " + ShapeText(tensor) + " on " + DeviceName(tensor);
}

void RequireDeviceOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor) {
  if (!OnOneDevice(tensor, k)) Reject(op, argument, Describe(tensor), "a tensor on " + DeviceName(k));
}

Tensor HostTensor(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor) {
  if (tensor.is_cpu()) return torch::stable::contiguous(tensor);
  RequireDeviceOf(op, k, argument, tensor);
  return torch::stable::contiguous(
      torch::stable::to(tensor, torch::stable::Device(torch::headeronly::DeviceType::CPU)));
}

int32_t RequireInt32(std::string_view op, std::string_view argument, int64_t value, int64_t at_least) {
  if (value < at_least || value > std::numeric_limits<int32_t>::max()) {
    Reject(op, argument, std::to_string(value), "at least " + std::to_string(at_least) + " and below 2^31");
  }
  return static_cast<int32_t>(value);
}

DType ElementType(std::string_view op, std::string_view argument, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    default:
      Reject(op, argument, Describe(tensor), "float32, float16 or bfloat16");
  }
}

void RequireKeysAndValues(std::string_view op, const Tensor& k, const Tensor& v) {
  RequireDeviceOf(op, k, "v", v);
  ElementType(op, "k", k);
  if (k.dim() != 4) Reject(op, "k", Describe(k), "4 dimensions");
  for (int64_t d = 0; d < 4; ++d) {
    if (v.dim() != 4 || v.size(d) != k.size(d) || v.scalar_type() != k.scalar_type()) {
      Reject(op, "v", Describe(v), "the shape and type of k, " + Describe(k));
    }
  }
  RequireInt32(op, "k's last size", k.size(3), 1);
}

Tensor EmptyContiguous(const Tensor& k) {
  return NewResult(k, {k.size(0), k.size(1), k.size(2), k.size(3)}, k.scalar_type());
}

Tensor WithContiguousRows(const Tensor& k) { return k.stride(3) == 1 ? k : torch::stable::contiguous(k); }

kv::FrameKv FrameOf(std::string_view op, const Tensor& k, const Tensor& v) {
  RequireKeysAndValues(op, k, v);
  constexpr std::string_view kExpected =
      "[L, Hkv, F, D] with contiguous [F, D], k and v of equal strides, no row twice";
  const bool contiguous_rows = (k.size(3) == 1 || k.stride(3) == 1) && (k.size(2) <= 1 || k.stride(2) == k.size(3));
  if (!contiguous_rows || !RowsAreDisjoint(k)) Reject(op, "k", Describe(k) + ", " + StrideText(k), kExpected);
  for (int64_t d = 0; d < 4; ++d) {
    if (v.size(d) > 1 && v.stride(d) != k.stride(d)) {
      Reject(op, "v", Describe(v) + ", " + StrideText(v), kExpected);
    }
  }
  kv::FrameKv frame;
  frame.k = k.mutable_data_ptr();
  frame.v = v.mutable_data_ptr();
  if (k.numel() > 0 && frame.k == frame.v) Reject(op, "v", "k itself", "a buffer of its own");
  frame.dtype = ElementType(op, "k", k);
  frame.layers = RequireInt32(op, "k's size 0 (layers)", k.size(0), 1);
  frame.kv_heads = RequireInt32(op, "k's size 1 (KV heads)", k.size(1), 1);
  frame.head_dim = RequireInt32(op, "k's size 3 (head_dim)", k.size(3), 1);
  frame.slots = RequireInt32(op, "k's size 2 (slots)", k.size(2), 1);
  frame.layer_stride = k.stride(0);
  frame.head_stride = k.stride(1);
  return frame;
}

kv::SlotPhase PhaseOf(std::string_view op, const Tensor& k, const Tensor& cos, const Tensor& sin,
                      const kv::FrameKv& frame) {
  for (const auto& [argument, tensor] : {std::pair{"cos", cos}, std::pair{"sin", sin}}) {
    RequireDeviceOf(op, k, argument, tensor);
    if (tensor.scalar_type() != ScalarType::Float || tensor.dim() != 2 || tensor.size(0) != frame.slots ||
        tensor.size(1) != cos.size(1) || tensor.size(1) > frame.head_dim / 2 || !tensor.is_contiguous()) {
      Reject(op, argument, Describe(tensor) + (tensor.is_contiguous() ? "" : ", not contiguous"),
             "contiguous float32 [F, rotary_dim / 2] with F = " + std::to_string(frame.slots) +
                 ", rotary_dim <= D = " + std::to_string(frame.head_dim) + ", cos and sin of one shape");
    }
  }
  kv::SlotPhase phase{static_cast<float*>(cos.mutable_data_ptr()), static_cast<float*>(sin.mutable_data_ptr()),
                      static_cast<int32_t>(cos.size(1))};
  if (phase.half > 0 && phase.cos == phase.sin) Reject(op, "sin", "cos itself", "a buffer of its own");
  return phase;
}

kv::RopeTable RopeOf(std::string_view op, const Tensor& k, const Tensor& inv_freq, double attention_scaling,
                     bool interleaved) {
  const bool widened = inv_freq.scalar_type() == ScalarType::Float;
  if (inv_freq.dim() != 1 || (inv_freq.scalar_type() != ScalarType::Double && !widened)) {
    Reject(op, "inv_freq", Describe(inv_freq), "float64 or float32 [rotary_dim / 2]");
  }
  const Tensor contiguous = HostTensor(op, k, "inv_freq", inv_freq);
  const auto count = static_cast<size_t>(contiguous.numel());
  std::vector<double> frequencies(count);
  if (widened) {
    const auto* first = static_cast<const float*>(contiguous.const_data_ptr());
    std::copy(first, first + count, frequencies.begin());
  } else if (count > 0) {
    std::memcpy(frequencies.data(), contiguous.const_data_ptr(), count * sizeof(double));
  }
  return TableOf(op, k, std::move(frequencies), attention_scaling, interleaved);
}

kv::RopeTable RopeOrDefault(std::string_view op, const Tensor& k, const std::optional<Tensor>& inv_freq,
                            double attention_scaling, bool interleaved) {
  if (inv_freq) return RopeOf(op, k, *inv_freq, attention_scaling, interleaved);
  const int64_t head_dim = k.size(3);
  if (head_dim % 2 != 0) {
    Reject(op, "inv_freq", "not given", "one where D is odd, as " + std::to_string(head_dim) + " is");
  }
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(kDefaultTheta, -static_cast<double>(2 * i) / static_cast<double>(head_dim));
  }
  return TableOf(op, k, std::move(frequencies), attention_scaling, interleaved);
}

void RequireTokens(std::string_view op, int64_t tokens, const kv::FrameKv& frame) {
  if (tokens >= 0 && tokens <= frame.slots) return;
  Reject(op, "tokens", std::to_string(tokens), "0 to F = " + std::to_string(frame.slots));
}

std::vector<int64_t> PositionsOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor,
                                 int64_t length) {
  if (tensor.dim() != 1 || tensor.scalar_type() != ScalarType::Long || tensor.size(0) != length) {
    Reject(op, argument, Describe(tensor), "int64 [" + std::to_string(length) + "]");
  }
  const Tensor contiguous = HostTensor(op, k, argument, tensor);
  const auto* first = static_cast<const int64_t*>(contiguous.const_data_ptr());
  std::vector<int64_t> positions(first, first + length);
  for (size_t t = 0; t < positions.size(); ++t) {
    if (positions[t] < 0 || positions[t] >= kv::kPositionLimit) {
      Reject(op, std::string(argument) + "[" + std::to_string(t) + "]", std::to_string(positions[t]),
             "a position from 0 to " + std::to_string(kv::kPositionLimit - 1));
    }
  }
  return positions;
}

PairPhases PairPhasesOf(std::string_view op, const Tensor& k, std::string_view argument, const Tensor& tensor,
                        bool interleaved) {
  const int64_t batch = k.size(0);
  const int64_t tokens = k.size(2);
  const int64_t head_dim = k.size(3);
  const int64_t rank = tensor.dim();
  const bool shape_fits = (rank == 2 || (rank == 3 && (tensor.size(0) == 1 || tensor.size(0) == batch))) &&
                          tensor.size(rank - 2) == tokens && tensor.size(rank - 1) % 2 == 0 &&
                          tensor.size(rank - 1) <= head_dim;
  if (!shape_fits) {
    Reject(op, argument, Describe(tensor),
           "[T, rotary_dim] or [1 or B, T, rotary_dim] with B = " + std::to_string(batch) +
               ", T = " + std::to_string(tokens) + " and an even rotary_dim <= D = " + std::to_string(head_dim));
  }
  const Tensor contiguous = HostTensor(op, k, argument, tensor);
  const std::vector<float> rows = FloatValues(op, argument, contiguous);
  const auto width = static_cast<size_t>(tensor.size(rank - 1));
  const size_t half = width / 2;
  const auto half_apart = [&](size_t i) { return i + half; };
  const auto same = [](size_t i) { return i; };
  const auto even = [](size_t i) { return 2 * i; };
  const auto odd = [](size_t i) { return 2 * i + 1; };

  PairPhases phases;
  phases.batch = rank == 3 ? tensor.size(0) : 1;
  phases.half = static_cast<int32_t>(half);
  if (width == 0) return phases;
  phases.values.reserve(rows.size() / 2);
  const bool halves = PairsAreEqual(rows, width, same, half_apart);
  if (!halves && !(interleaved && PairsAreEqual(rows, width, even, odd))) {
    Reject(op, argument, "not the same for the two elements of a pair",
           interleaved ? "cat(x, x) or repeat_interleave(x, 2) along the last dimension"
                       : "cat(x, x) along the last dimension");
  }
  for (size_t row = 0; row < rows.size(); row += width) {
    for (size_t i = 0; i < half; ++i) phases.values.push_back(rows[row + (halves ? i : 2 * i)]);
  }
  return phases;
}

}  // namespace everlong::ops
