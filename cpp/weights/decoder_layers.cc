#include "everlong/weights/decoder_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "everlong/base/parallel_for.h"
#include "layer_kernel.h"

namespace everlong::weights {
namespace {

constexpr int64_t kNumbersAPart = 1 << 15;  // of a thread's part of attention: below, starting it costs more

Status Fits(const char* name, const Linear& linear, int64_t rows, int64_t columns) {
  EVERLONG_RETURN_IF_ERROR(Validate(linear.matrix));
  const bool fits = linear.matrix.rows == rows && linear.matrix.columns == columns &&
                    (linear.bias.empty() || static_cast<int64_t>(linear.bias.size()) == rows);
  if (fits) return OkStatus();
  return InvalidArgumentError(std::string(name) + " is [" + std::to_string(linear.matrix.rows) + ", " +
                              std::to_string(linear.matrix.columns) + "] with a bias of " +
                              std::to_string(linear.bias.size()) + ", expected [" + std::to_string(rows) + ", " +
                              std::to_string(columns) + "] with one for each row or none");
}

Status Fits(const char* name, std::span<const float> norm, int64_t size, bool may_be_none) {
  const auto count = static_cast<int64_t>(norm.size());
  if (count == size || (may_be_none && count == 0)) return OkStatus();
  return InvalidArgumentError(std::string(name) + " has " + std::to_string(count) + " numbers, expected " +
                              std::to_string(size));
}

// Turn a head [D] by its token's position.
void Turn(const TokenStep& step, int64_t token, float* head) {
  const int64_t half = step.shape.head_dim / 2;
  const float* const cos = step.cos.data() + token * half;
  const float* const sin = step.sin.data() + token * half;
  for (int64_t i = 0; i < half; ++i) {
    const float first = head[i];
    const float second = head[i + half];
    head[i] = first * cos[i] - second * sin[i];
    head[i + half] = second * cos[i] + first * sin[i];
  }
}

// Norm, where there is a weight, and turn heads [T, count, D].
void Turned(const TokenStep& step, std::span<const float> norm, int64_t count, std::span<float> heads) {
  const int64_t dim = step.shape.head_dim;
  for (int64_t i = 0; i < static_cast<int64_t>(heads.size()) / dim; ++i) {
    float* const at = heads.data() + i * dim;
    if (!norm.empty()) BestLayerKernel().norm(at, norm.data(), dim, step.epsilon, at);
    Turn(step, i / count, at);
  }
}

// What attention found of one token in parts of its slots, for each query head.
struct Parts {
  int64_t count = 0;
  std::vector<float> largest;  // [parts][H]
  std::vector<float> totals;   // [parts][H]
  std::vector<float> sums;     // [parts][H][D]

  Parts(int64_t parts, const HeadShape& shape)
      : count(parts),
        largest(static_cast<size_t>(parts * shape.heads)),
        totals(largest.size()),
        sums(largest.size() * static_cast<size_t>(shape.head_dim)) {}
};

// Set out [D] to what a query head attends to in all parts.
void Combine(const Parts& parts, int64_t head, const HeadShape& shape, float* out) {
  const auto at = [&](int64_t part) { return static_cast<size_t>(part * shape.heads + head); };
  float largest = parts.largest[at(0)];
  for (int64_t part = 1; part < parts.count; ++part) largest = std::max(largest, parts.largest[at(part)]);
  float total = 0.0F;
  std::fill_n(out, shape.head_dim, 0.0F);
  for (int64_t part = 0; part < parts.count; ++part) {
    const float share = std::exp(parts.largest[at(part)] - largest);
    const float* const sums = parts.sums.data() + static_cast<int64_t>(at(part)) * shape.head_dim;
    total += parts.totals[at(part)] * share;
    for (int64_t d = 0; d < shape.head_dim; ++d) out[d] += sums[d] * share;
  }
  for (int64_t d = 0; d < shape.head_dim; ++d) out[d] /= total;
}

// Append to `tasks` what the queries [H, D] of a token attend to: `seen` slots of its stream.
void AddTasks(const TokenStep& step, const Stream& stream, int64_t seen, const float* queries, Parts& parts,
              std::vector<Attended>& tasks) {
  const HeadShape& shape = step.shape;
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    for (int64_t part = 0; part < parts.count; ++part) {
      const int64_t first = part * kAttendedSlots;
      const int64_t slot = kv_head * stream.head_stride + (stream.begin + first) * shape.head_dim;
      const int64_t head = kv_head * group;
      const int64_t at = part * shape.heads + head;
      Attended& attended = tasks.emplace_back();
      attended.k = stream.k + slot;
      attended.v = stream.v + slot;
      attended.slots = std::min(kAttendedSlots, seen - first);
      attended.head_dim = shape.head_dim;
      attended.queries = queries + head * shape.head_dim;
      attended.heads = group;
      attended.scale = step.scale;
      attended.largest = parts.largest.data() + at;
      attended.totals = parts.totals.data() + at;
      attended.sums = parts.sums.data() + at * shape.head_dim;
    }
  }
}

// Set out [T, H, D] to what queries [T, H, D] attend to.
void Attend(const TokenStep& step, std::span<const Stream> streams, const float* queries, float* out) {
  const HeadShape& shape = step.shape;
  std::vector<Parts> parts;  // of each token
  for (const Stream& stream : streams) {
    for (int64_t t = 0; t < stream.tokens; ++t) {
      const int64_t seen = stream.end + t + 1 - stream.begin;
      parts.emplace_back((seen + kAttendedSlots - 1) / kAttendedSlots, shape);
    }
  }
  std::vector<Attended> tasks;
  size_t token = 0;
  for (const Stream& stream : streams) {
    for (int64_t t = 0; t < stream.tokens; ++t, ++token) {
      const float* const own = queries + static_cast<int64_t>(token) * shape.heads * shape.head_dim;
      AddTasks(step, stream, stream.end + t + 1 - stream.begin, own, parts[token], tasks);
    }
  }
  const int64_t grain = kNumbersAPart / (tasks[0].slots * shape.head_dim) + 1;
  ParallelFor(0, static_cast<int64_t>(tasks.size()), grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) BestLayerKernel().attend(tasks[static_cast<size_t>(task)]);
  });
  for (token = 0; token < parts.size(); ++token) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t at = static_cast<int64_t>(token) * shape.heads + head;
      Combine(parts[token], head, shape, out + at * shape.head_dim);
    }
  }
}

// Write keys and values [T, Hkv, D] to the tokens' slots.
void Put(const HeadShape& shape, std::span<const Stream> streams, const float* keys, const float* values) {
  for (const Stream& stream : streams) {
    for (int64_t i = 0; i < stream.tokens * shape.kv_heads; ++i) {
      const int64_t slot = stream.end + i / shape.kv_heads;
      const int64_t at = i % shape.kv_heads * stream.head_stride + slot * shape.head_dim;
      std::copy_n(keys + i * shape.head_dim, shape.head_dim, stream.k + at);
      std::copy_n(values + i * shape.head_dim, shape.head_dim, stream.v + at);
    }
    keys += stream.tokens * shape.kv_heads * shape.head_dim;
    values += stream.tokens * shape.kv_heads * shape.head_dim;
  }
}

// Norm rows [T, E].
void NormRows(std::span<const float> x, std::span<const float> weight, float epsilon, float* out) {
  const size_t width = weight.size();
  for (size_t row = 0; row < x.size(); row += width) {
    BestLayerKernel().norm(x.data() + row, weight.data(), static_cast<int64_t>(width), epsilon, out + row);
  }
}

RowProduct ProductOf(const Linear& linear, float* out) { return {linear.matrix, linear.bias, {out, DType::kFloat32}}; }

void AddTo(std::span<float> x, std::span<const float> more) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
}

}  // namespace

Status Validate(const DecoderLayer& layer, const HeadShape& shape, int64_t width) {
  if (shape.kv_heads <= 0 || shape.heads <= 0 || shape.heads % shape.kv_heads != 0 || shape.head_dim <= 0 ||
      shape.head_dim % kSumLanes != 0 || width <= 0 || width % kSumLanes != 0) {
    return InvalidArgumentError("a token of " + std::to_string(width) + " numbers with " + std::to_string(shape.heads) +
                                " heads of " + std::to_string(shape.head_dim) + " over " +
                                std::to_string(shape.kv_heads) +
                                " key heads; expected multiples of 16, and whole groups of heads");
  }
  const int64_t queries = shape.heads * shape.head_dim;
  const int64_t keys = shape.kv_heads * shape.head_dim;
  const int64_t middle = layer.gate.matrix.rows;
  EVERLONG_RETURN_IF_ERROR(Fits("attention_norm", layer.attention_norm, width, false));
  EVERLONG_RETURN_IF_ERROR(Fits("query", layer.query, queries, width));
  EVERLONG_RETURN_IF_ERROR(Fits("key", layer.key, keys, width));
  EVERLONG_RETURN_IF_ERROR(Fits("value", layer.value, keys, width));
  EVERLONG_RETURN_IF_ERROR(Fits("query_norm", layer.query_norm, shape.head_dim, true));
  EVERLONG_RETURN_IF_ERROR(Fits("key_norm", layer.key_norm, shape.head_dim, true));
  EVERLONG_RETURN_IF_ERROR(Fits("output", layer.output, width, queries));
  EVERLONG_RETURN_IF_ERROR(Fits("feed_forward_norm", layer.feed_forward_norm, width, false));
  EVERLONG_RETURN_IF_ERROR(Fits("gate", layer.gate, middle, width));
  EVERLONG_RETURN_IF_ERROR(Fits("up", layer.up, middle, width));
  return Fits("down", layer.down, width, middle);
}

void ComputeTokens(const DecoderLayer& layer, const TokenStep& step, std::span<const Stream> streams,
                   std::span<float> x) {
  const HeadShape& shape = step.shape;
  const auto tokens = static_cast<int64_t>(x.size() / layer.attention_norm.size());
  const int64_t queries = shape.heads * shape.head_dim;
  const int64_t keys = shape.kv_heads * shape.head_dim;
  const int64_t middle = layer.gate.matrix.rows;
  std::vector<float> normed(x.size());
  std::vector<float> room(static_cast<size_t>(tokens * 2 * std::max(queries + keys, middle)));
  std::vector<float> added(x.size());
  const auto rows = [&](const float* data) { return ConstRows{data, DType::kFloat32, tokens}; };
  const auto span = [&](float* data, int64_t width) { return std::span(data, static_cast<size_t>(tokens * width)); };

  NormRows(x, layer.attention_norm, step.epsilon, normed.data());
  float* const query = room.data();
  float* const key = query + tokens * queries;
  float* const value = key + tokens * keys;
  float* const attended = value + tokens * keys;
  const RowProduct heads[] = {ProductOf(layer.query, query), ProductOf(layer.key, key), ProductOf(layer.value, value)};
  Multiply(rows(normed.data()), heads);
  Turned(step, layer.query_norm, shape.heads, span(query, queries));
  Turned(step, layer.key_norm, shape.kv_heads, span(key, keys));
  Put(shape, streams, key, value);
  Attend(step, streams, query, attended);
  const RowProduct output[] = {ProductOf(layer.output, added.data())};
  Multiply(rows(attended), output);
  AddTo(x, added);

  NormRows(x, layer.feed_forward_norm, step.epsilon, normed.data());
  float* const gate = room.data();
  float* const up = gate + tokens * middle;
  const RowProduct inner[] = {ProductOf(layer.gate, gate), ProductOf(layer.up, up)};
  Multiply(rows(normed.data()), inner);
  BestLayerKernel().silu_times(gate, up, tokens * middle);
  const RowProduct down[] = {ProductOf(layer.down, added.data())};
  Multiply(rows(gate), down);
  AddTo(x, added);
}

}  // namespace everlong::weights
