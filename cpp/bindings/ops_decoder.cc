#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/weights/decoder_layers.h"
#include "ops_arguments.h"
#include "ops_kernels.h"

namespace everlong::ops {
namespace {

constexpr std::string_view kOp = "decode_tokens_";
constexpr size_t kMatrices = 7;  // of a layer: query, key, value, output, gate, up, down
constexpr size_t kVectors = 11;  // of a layer: four norms, and a bias of each matrix

// Return a view of fp32 numbers [n]; `n` may be 0. With `rows` they are [rows, n].
std::span<const float> Numbers(std::string_view argument, const Tensor& tensor, int64_t rows = -1) {
  const bool fits = rows < 0 ? tensor.dim() == 1 : tensor.dim() == 2 && tensor.size(0) == rows;
  if (!tensor.is_cpu() || tensor.scalar_type() != ScalarType::Float || !fits || !tensor.is_contiguous()) {
    Reject(kOp, argument, Describe(tensor), "contiguous float32 on the CPU, [n] or a row of n for each token");
  }
  return {static_cast<const float*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel())};
}

// The tensors of one layer, in order.
class LayerTensors {
 public:
  LayerTensors(const std::vector<Tensor>& matrices, const std::vector<Tensor>& vectors,
               const std::vector<int64_t>& formats, size_t layer)
      : matrices_(matrices.data() + layer * kMatrices),
        vectors_(vectors.data() + layer * kVectors),
        formats_(formats.data() + layer * kMatrices) {}

  [[nodiscard]] weights::DecoderLayer Layer() const {
    weights::DecoderLayer layer;
    layer.attention_norm = Numbers("a norm", vectors_[0]);
    layer.query_norm = Numbers("a norm", vectors_[1]);
    layer.key_norm = Numbers("a norm", vectors_[2]);
    layer.feed_forward_norm = Numbers("a norm", vectors_[3]);
    layer.query = LinearAt(0);
    layer.key = LinearAt(1);
    layer.value = LinearAt(2);
    layer.output = LinearAt(3);
    layer.gate = LinearAt(4);
    layer.up = LinearAt(5);
    layer.down = LinearAt(6);
    return layer;
  }

 private:
  [[nodiscard]] weights::Linear LinearAt(size_t i) const {
    return {MatrixOf(kOp, matrices_[i], formats_[i]), Numbers("a bias", vectors_[4 + i])};
  }

  const Tensor* matrices_;
  const Tensor* vectors_;
  const int64_t* formats_;
};

// The frame of one stream, and its tokens.
struct OwnStream {
  kv::FrameKv frame;
  weights::Stream stream;  // of the first layer

  [[nodiscard]] weights::Stream Of(size_t layer) const {
    weights::Stream of = stream;
    of.k += static_cast<int64_t>(layer) * frame.layer_stride;
    of.v += static_cast<int64_t>(layer) * frame.layer_stride;
    return of;
  }
};

OwnStream StreamOf(const Tensor& k, const Tensor& v, int64_t begin, int64_t end, int64_t tokens) {
  RequireKeysAndValues(kOp, k, v);
  const kv::FrameKv frame = FrameOf(kOp, k, v);
  if (!k.is_cpu() || frame.dtype != DType::kFloat32) Reject(kOp, "k", Describe(k), "float32 on the CPU");
  if (tokens < 1 || begin < 0 || end < begin || end > frame.slots - tokens) {
    Reject(kOp, "begin, end, tokens",
           std::to_string(begin) + ", " + std::to_string(end) + ", " + std::to_string(tokens),
           "slots of " + std::to_string(frame.slots));
  }
  return {frame, {tokens, static_cast<float*>(frame.k), static_cast<float*>(frame.v), frame.head_stride, begin, end}};
}

}  // namespace

void DecodeTokens(const Tensor& hidden, const std::vector<Tensor>& matrices, const std::vector<Tensor>& vectors,
                  const std::vector<int64_t>& formats, const std::vector<Tensor>& k, const std::vector<Tensor>& v,
                  const std::vector<int64_t>& spans, const Tensor& cos, const Tensor& sin, double epsilon,
                  double scale) {
  const int64_t tokens = hidden.dim() == 2 ? hidden.size(0) : 0;
  (void)Numbers("hidden", hidden, tokens);
  if (k.empty() || v.size() != k.size() || spans.size() != 3 * k.size()) {
    Reject(kOp, "the streams",
           std::to_string(k.size()) + " k, " + std::to_string(v.size()) + " v and " + std::to_string(spans.size()) +
               " numbers",
           "one k, one v and begin, end, tokens for each");
  }
  std::vector<OwnStream> streams;
  int64_t taken = 0;
  for (size_t i = 0; i < k.size(); ++i) {
    streams.push_back(StreamOf(k[i], v[i], spans[3 * i], spans[3 * i + 1], spans[3 * i + 2]));
    const kv::FrameKv& first = streams[0].frame;
    const kv::FrameKv& own = streams[i].frame;
    if (own.layers != first.layers || own.kv_heads != first.kv_heads || own.head_dim != first.head_dim) {
      Reject(kOp, "k", Describe(k[i]), "the layers and heads of the first, " + Describe(k[0]));
    }
    taken += streams[i].stream.tokens;
  }
  const kv::FrameKv& frame = streams[0].frame;
  if (taken != tokens) {
    Reject(kOp, "hidden", Describe(hidden), "[T, E] of the streams' " + std::to_string(taken) + " tokens");
  }
  const auto layers = static_cast<size_t>(frame.layers);
  if (matrices.size() != layers * kMatrices || vectors.size() != layers * kVectors ||
      formats.size() != matrices.size()) {
    Reject(kOp, "the layers",
           std::to_string(matrices.size()) + " matrices, " + std::to_string(formats.size()) + " formats and " +
               std::to_string(vectors.size()) + " vectors",
           "7, 7 and 11 for each layer of k");
  }
  weights::TokenStep step;
  step.cos = Numbers("cos", cos, tokens);
  step.sin = Numbers("sin", sin, tokens);
  step.epsilon = static_cast<float>(epsilon);
  step.scale = static_cast<float>(scale);
  const auto angles = static_cast<size_t>(tokens * (frame.head_dim / 2));
  if (step.cos.size() != angles || step.sin.size() != angles) {
    Reject(kOp, "cos, sin", Describe(cos) + ", " + Describe(sin), "[T, D / 2] each");
  }
  std::vector<weights::DecoderLayer> checked;
  checked.reserve(layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    checked.push_back(LayerTensors(matrices, vectors, formats, layer).Layer());
    if (layer == 0) step.shape = {checked[0].query.matrix.rows / frame.head_dim, frame.kv_heads, frame.head_dim};
    ThrowIfError(kOp, weights::Validate(checked.back(), step.shape, hidden.size(1)));
  }
  const std::span<float> x(static_cast<float*>(hidden.mutable_data_ptr()), static_cast<size_t>(hidden.numel()));
  std::vector<weights::Stream> of_layer(streams.size());
  for (size_t layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < streams.size(); ++i) of_layer[i] = streams[i].Of(layer);
    weights::ComputeTokens(checked[layer], step, of_layer, x);
  }
}

}  // namespace everlong::ops
