// One token through a decoder's layers: its kernels in every instruction set against doubles, and a whole layer against
// the same arithmetic in doubles over products of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../../cpp/weights/layer_kernel.h"
#include "everlong/base/parallel_for.h"
#include "everlong/weights/decoder_layers.h"
#include "weights_random_matrix.h"

namespace everlong::weights {
namespace {

std::vector<float> Normal(int64_t count, std::mt19937& random, float size = 1.0F) {
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> numbers(static_cast<size_t>(count));
  std::ranges::generate(numbers, [&] { return normal(random); });
  return numbers;
}

std::vector<double> Normed(std::span<const double> x, std::span<const float> weight, double epsilon) {
  double squares = 0;
  for (const double number : x) squares += number * number;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * factor * static_cast<double>(weight[i]));
  return out;
}

// Attention of one head over slots [slots, dim].
std::vector<double> Attention(std::span<const double> query, std::span<const float> k, std::span<const float> v,
                              double scale) {
  const size_t dim = query.size();
  std::vector<double> scores;
  for (size_t slot = 0; slot < k.size() / dim; ++slot) {
    double score = 0;
    for (size_t d = 0; d < dim; ++d) score += query[d] * static_cast<double>(k[slot * dim + d]);
    scores.push_back(score * scale);
  }
  const double largest = std::ranges::max(scores);
  double total = 0;
  std::vector<double> out(dim);
  for (size_t slot = 0; slot < scores.size(); ++slot) {
    const double share = std::exp(scores[slot] - largest);
    total += share;
    for (size_t d = 0; d < dim; ++d) out[d] += share * static_cast<double>(v[slot * dim + d]);
  }
  for (double& number : out) number /= total;
  return out;
}

std::vector<double> Doubles(std::span<const float> numbers) { return {numbers.begin(), numbers.end()}; }

TEST(LayerKernel, NormsAndSilusAreThoseOfDoublesAndTheSameBitsEverywhere) {
  std::mt19937 random(1);
  const LayerKernel& portable = SupportedLayerKernels().kernels[SupportedLayerKernels().count - 1];
  for (const int64_t n : {16, 48, 576, 896}) {
    for (const float size : {1e-3F, 1.0F, 30.0F, 1e4F}) {
      const std::vector<float> x = Normal(n, random, size);
      const std::vector<float> weight = Normal(n, random);
      std::vector<float> expected(x.size());
      portable.norm(x.data(), weight.data(), n, 1e-5F, expected.data());
      const std::vector<double> exact = Normed(Doubles(x), weight, 1e-5F);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(expected[i], exact[i], 2e-6 * std::abs(exact[i]) + 1e-7);
      std::vector<float> gated = x;
      portable.silu_times(gated.data(), weight.data(), n);
      for (size_t i = 0; i < x.size(); ++i) {
        const double number = x[i];
        const double silu = number / (1 + std::exp(-number)) * static_cast<double>(weight[i]);
        ASSERT_NEAR(gated[i], silu, 1e-6 * std::abs(silu) + 1e-30) << x[i];
      }
      for (int32_t i = 0; i < SupportedLayerKernels().count; ++i) {
        const LayerKernel& kernel = SupportedLayerKernels().kernels[i];
        std::vector<float> out(x.size());
        kernel.norm(x.data(), weight.data(), n, 1e-5F, out.data());
        EXPECT_EQ(out, expected) << kernel.name;
        std::vector<float> same = x;
        kernel.silu_times(same.data(), weight.data(), n);
        EXPECT_EQ(same, gated) << kernel.name;
      }
    }
  }
}

TEST(LayerKernel, AttentionIsThatOfDoublesAndTheSameBitsEverywhere) {
  std::mt19937 random(2);
  for (const int64_t dim : {16, 64, 80, 128}) {
    for (const int64_t heads : {1, 2, 3, 4, 7, 8}) {
      for (const int64_t slots : {1, 2, 15, 17, 255, 256}) {
        const std::vector<float> queries = Normal(heads * dim, random);
        const std::vector<float> k = Normal(slots * dim, random, 3.0F);
        const std::vector<float> v = Normal(slots * dim, random);
        std::vector<std::vector<float>> found;
        for (int32_t i = 0; i < SupportedLayerKernels().count; ++i) {
          std::vector<float> largest(static_cast<size_t>(heads));
          std::vector<float> totals(largest.size());
          std::vector<float> sums(queries.size());
          Attended attended;
          attended.k = k.data();
          attended.v = v.data();
          attended.slots = slots;
          attended.head_dim = dim;
          attended.queries = queries.data();
          attended.heads = heads;
          attended.scale = 0.3F;
          attended.largest = largest.data();
          attended.totals = totals.data();
          attended.sums = sums.data();
          SupportedLayerKernels().kernels[i].attend(attended);
          for (int64_t head = 0; head < heads; ++head) {
            const std::vector<double> exact = Attention(
                Doubles(std::span(queries).subspan(static_cast<size_t>(head * dim), static_cast<size_t>(dim))), k, v,
                0.3F);
            for (int64_t d = 0; d < dim; ++d) {
              const float sum = sums[static_cast<size_t>(head * dim + d)] / totals[static_cast<size_t>(head)];
              ASSERT_NEAR(sum, exact[static_cast<size_t>(d)], 2e-5) << heads << " " << slots;
            }
          }
          sums.insert(sums.end(), totals.begin(), totals.end());
          sums.insert(sums.end(), largest.begin(), largest.end());
          found.push_back(sums);
        }
        for (const std::vector<float>& other : found) ASSERT_EQ(other, found[0]);
      }
    }
  }
}

TEST(LayerKernel, NumbersThatAreNoneStayNone) {
  for (int32_t i = 0; i < SupportedLayerKernels().count; ++i) {
    const LayerKernel& kernel = SupportedLayerKernels().kernels[i];
    std::vector<float> gate(16, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> ones(16, 1.0F);
    kernel.silu_times(gate.data(), ones.data(), 16);
    EXPECT_TRUE(std::ranges::all_of(gate, [](float x) { return std::isnan(x); })) << kernel.name;
    std::vector<float> out(16);
    std::vector<float> x = ones;
    x[3] = std::numeric_limits<float>::infinity();
    kernel.norm(x.data(), ones.data(), 16, 1e-5F, out.data());
    EXPECT_TRUE(std::isnan(out[3])) << kernel.name;
  }
}

constexpr int64_t kWidth = 256;
constexpr int64_t kSlots = 700;

// A layer that owns its numbers, and its frame.
struct OwnedLayer {
  std::vector<OwnedMatrix> matrices;
  std::vector<std::vector<float>> vectors;
  HeadShape shape{8, 2, 32};
  DecoderLayer layer;
  std::vector<float> cos = std::vector<float>(16);
  std::vector<float> sin = std::vector<float>(16);
  std::vector<float> k, v;

  OwnedLayer(std::mt19937& random, bool has_biases, bool has_head_norms) {
    const int64_t queries = shape.heads * shape.head_dim;
    const int64_t keys = shape.kv_heads * shape.head_dim;
    const auto linear = [&](int64_t rows, int64_t columns) {
      matrices.push_back(RandomMatrix(kFormats[matrices.size() % std::size(kFormats)], rows, columns, random));
      vectors.push_back(has_biases ? Normal(rows, random) : std::vector<float>());
      return Linear{matrices.back().matrix, vectors.back()};
    };
    const auto norm = [&](int64_t size) {
      vectors.push_back(Normal(size, random));
      return std::span<const float>(vectors.back());
    };
    matrices.reserve(7);
    vectors.reserve(20);
    layer.attention_norm = norm(kWidth);
    layer.query = linear(queries, kWidth);
    layer.key = linear(keys, kWidth);
    layer.value = linear(keys, kWidth);
    if (has_head_norms) layer.query_norm = norm(shape.head_dim);
    if (has_head_norms) layer.key_norm = norm(shape.head_dim);
    layer.output = linear(kWidth, queries);
    layer.feed_forward_norm = norm(kWidth);
    layer.gate = linear(512, kWidth);
    layer.up = linear(512, kWidth);
    layer.down = linear(kWidth, 512);
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(0.1F * static_cast<float>(i));
      sin[i] = std::sin(0.1F * static_cast<float>(i));
    }
    k = Normal(shape.kv_heads * kSlots * shape.head_dim, random);
    v = Normal(shape.kv_heads * kSlots * shape.head_dim, random);
  }

  [[nodiscard]] TokenStep Step() const { return {shape, cos, sin, 1e-6F, 0.2F}; }
  [[nodiscard]] std::vector<Stream> Tokens(int64_t begin, int64_t end, int64_t tokens = 1) {
    return {{tokens, k.data(), v.data(), kSlots * shape.head_dim, begin, end}};
  }
};

std::vector<double> Product(const Linear& linear, std::span<const double> x) {
  const std::vector<float> row(x.begin(), x.end());
  std::vector<float> out(static_cast<size_t>(linear.matrix.rows));
  Multiply(linear.matrix, {row.data(), DType::kFloat32, 1}, linear.bias, {out.data(), DType::kFloat32});
  return Doubles(out);
}

void Turn(std::span<double> heads, const OwnedLayer& of, std::span<const float> norm) {
  for (size_t first = 0; first < heads.size(); first += 32) {
    const std::span<double> head = heads.subspan(first, 32);
    if (!norm.empty()) std::ranges::copy(Normed(head, norm, 1e-6F), head.begin());
    for (size_t i = 0; i < 16; ++i) {
      const double a = head[i];
      const double b = head[i + 16];
      head[i] = a * static_cast<double>(of.cos[i]) - b * static_cast<double>(of.sin[i]);
      head[i + 16] = b * static_cast<double>(of.cos[i]) + a * static_cast<double>(of.sin[i]);
    }
  }
}

// Return what the layer makes of x, by the formulas of decoder_layers.h. It writes the token's slot, too.
std::vector<double> InDoubles(OwnedLayer& of, std::span<const float> x, int64_t begin, int64_t end) {
  std::vector<double> row = Doubles(x);
  const std::vector<double> normed = Normed(row, of.layer.attention_norm, 1e-6F);
  std::vector<double> query = Product(of.layer.query, normed);
  std::vector<double> key = Product(of.layer.key, normed);
  const std::vector<double> value = Product(of.layer.value, normed);
  Turn(query, of, of.layer.query_norm);
  Turn(key, of, of.layer.key_norm);
  std::vector<double> attended;
  for (int64_t head = 0; head < of.shape.kv_heads; ++head) {
    for (int64_t d = 0; d < 32; ++d) {
      const auto at = static_cast<size_t>((head * kSlots + end) * 32 + d);
      of.k[at] = static_cast<float>(key[static_cast<size_t>(head * 32 + d)]);
      of.v[at] = static_cast<float>(value[static_cast<size_t>(head * 32 + d)]);
    }
  }
  for (int64_t head = 0; head < of.shape.heads; ++head) {
    const auto first = static_cast<size_t>((head / 4 * kSlots + begin) * 32);
    const auto count = static_cast<size_t>((end + 1 - begin) * 32);
    const std::vector<double> one =
        Attention(std::span(query).subspan(static_cast<size_t>(head * 32), 32), std::span(of.k).subspan(first, count),
                  std::span(of.v).subspan(first, count), 0.2F);
    attended.insert(attended.end(), one.begin(), one.end());
  }
  const std::vector<double> output = Product(of.layer.output, attended);
  for (size_t i = 0; i < row.size(); ++i) row[i] += output[i];
  const std::vector<double> again = Normed(row, of.layer.feed_forward_norm, 1e-6F);
  std::vector<double> gate = Product(of.layer.gate, again);
  const std::vector<double> up = Product(of.layer.up, again);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  const std::vector<double> down = Product(of.layer.down, gate);
  for (size_t i = 0; i < row.size(); ++i) row[i] += down[i];
  return row;
}

TEST(DecoderLayer, ATokenIsThatOfTheFormulas) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    OwnedLayer of(random, seed % 2 == 0, seed % 3 == 0);
    ASSERT_TRUE(Validate(of.layer, of.shape, kWidth).ok());
    const int64_t begin = seed % 4 == 0 ? 0 : 5;
    const int64_t end = seed % 5 == 0 ? begin : std::vector<int64_t>{6, 260, 517, kSlots - 1}[seed % 4];
    const std::vector<float> x = Normal(kWidth, random);
    OwnedLayer other = of;
    std::vector<float> found = x;
    ComputeTokens(of.layer, of.Step(), of.Tokens(begin, end), found);
    const std::vector<double> expected = InDoubles(other, x, begin, end);
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(found[i] - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    // Rounding may turn a number of a product's row to the next code of 8 bits.
    EXPECT_LT(std::sqrt(error / size), 2e-3) << seed;
    // Only the token's slot changed, and it has the token's key and value.
    for (size_t i = 0; i < of.k.size(); ++i) {
      ASSERT_NEAR(of.k[i], other.k[i], 2e-3) << i;
      ASSERT_NEAR(of.v[i], other.v[i], 2e-3) << i;
    }
  }
}

// Run a loop's parts from the last to the first, each as short as it may be.
void Backwards(int64_t begin, int64_t end, int64_t grain, const void* context, ParallelBody body) {
  for (int64_t last = end; last > begin; last -= grain) body(context, std::max(begin, last - grain), last);
}

TEST(DecoderLayer, PartsOfALoopDoNotChangeTheBits) {
  std::mt19937 random(3);
  OwnedLayer of(random, true, true);
  OwnedLayer other = of;
  const std::vector<float> x = Normal(kWidth, random);
  std::vector<float> found = x;
  std::vector<float> again = x;
  ComputeTokens(of.layer, of.Step(), of.Tokens(3, 600), found);
  SetParallelForHook(&Backwards);
  ComputeTokens(other.layer, other.Step(), other.Tokens(3, 600), again);
  SetParallelForHook(nullptr);
  EXPECT_EQ(found, again);
  EXPECT_EQ(of.k, other.k);
}

TEST(DecoderLayer, ATokenDoesNotDependOnThoseBesideIt) {
  std::mt19937 random(5);
  OwnedLayer first(random, true, true);
  OwnedLayer second = first;
  second.k = Normal(static_cast<int64_t>(second.k.size()), random);
  OwnedLayer alone[2] = {first, second};
  const std::vector<float> x = Normal(5 * kWidth, random);
  const std::vector<float> angles = Normal(5 * 16, random);
  // Three tokens of one stream, and two of another one.
  std::vector<Stream> streams = first.Tokens(3, 300, 3);
  streams.push_back(second.Tokens(0, 9, 2)[0]);
  std::vector<float> together = x;
  ComputeTokens(first.layer, {first.shape, angles, angles, 1e-6F, 0.2F}, streams, together);
  for (int64_t t = 0; t < 5; ++t) {
    OwnedLayer& of = alone[t / 3];
    const std::span<const float> own = std::span(angles).subspan(static_cast<size_t>(t * 16), 16);
    std::vector<float> one(x.begin() + t * kWidth, x.begin() + (t + 1) * kWidth);
    ComputeTokens(of.layer, {of.shape, own, own, 1e-6F, 0.2F}, t < 3 ? of.Tokens(3, 300 + t) : of.Tokens(0, 6 + t),
                  one);
    EXPECT_TRUE(std::ranges::equal(one, std::span(together).subspan(static_cast<size_t>(t * kWidth), kWidth))) << t;
  }
  EXPECT_EQ(first.k, alone[0].k);
  EXPECT_EQ(second.v, alone[1].v);
}

TEST(DecoderLayer, WhatDoesNotFitIsRefused) {
  std::mt19937 random(4);
  const OwnedLayer of(random, true, true);
  const auto refusal = [&](auto change) {
    DecoderLayer layer = of.layer;
    HeadShape shape = of.shape;
    change(layer, shape);
    return std::string(Validate(layer, shape, kWidth).message());
  };
  EXPECT_EQ(refusal([](DecoderLayer&, HeadShape&) {}), "");
  EXPECT_NE(refusal([](DecoderLayer& layer, HeadShape&) { layer.attention_norm = {}; }), "");
  EXPECT_NE(refusal([](DecoderLayer& layer, HeadShape&) { layer.query.bias = layer.query.bias.first(7); }), "");
  EXPECT_NE(refusal([](DecoderLayer& layer, HeadShape&) { std::swap(layer.gate, layer.key); }), "");
  EXPECT_NE(refusal([](DecoderLayer& layer, HeadShape&) { layer.value.matrix.rows = 65; }), "");
  EXPECT_NE(refusal([](DecoderLayer& layer, HeadShape&) { layer.down.matrix.format = static_cast<BlockFormat>(9); }),
            "");
  EXPECT_NE(refusal([](DecoderLayer&, HeadShape& shape) { shape.kv_heads = 3; }), "");
  EXPECT_NE(refusal([](DecoderLayer&, HeadShape& shape) { shape.kv_heads = 0; }), "");
  EXPECT_NE(refusal([](DecoderLayer&, HeadShape& shape) { shape.head_dim = 24; }), "");
  EXPECT_NE(refusal([](DecoderLayer&, HeadShape& shape) { shape.heads = -8; }), "");
}

}  // namespace
}  // namespace everlong::weights
