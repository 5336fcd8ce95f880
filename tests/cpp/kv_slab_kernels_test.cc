// Every instruction set's kernels against the functions of one number, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "../../cpp/kv/slab_kernels.h"
#include "everlong/base/cache_lines.h"
#include "everlong/base/element.h"

namespace everlong::kv {
namespace {

constexpr Format kElements[] = {Format::kFloat32, Format::kFloat16, Format::kBFloat16};
constexpr Format kCodes[] = {Format::kE4M3, Format::kE5M2};
constexpr Pairing kPairings[] = {Pairing::kHalfSplit, Pairing::kInterleaved};

// dim and half of slabs: whole vectors of every instruction set, parts of vectors, no rotation, all of it.
struct Shape {
  int32_t dim, half;
};
constexpr Shape kShapes[] = {{64, 32}, {128, 64}, {64, 16}, {80, 20}, {24, 12}, {21, 5}, {7, 3}, {33, 0}, {1, 0}};

float MaxOf(Format code) { return code == Format::kE4M3 ? kE4M3Max : kE5M2Max; }
uint8_t Encode(Format code, float value) { return code == Format::kE4M3 ? FloatToE4M3(value) : FloatToE5M2(value); }
float Decode(Format format, uint8_t code) { return format == Format::kE4M3 ? E4M3ToFloat(code) : E5M2ToFloat(code); }

float Get(const std::vector<std::byte>& bytes, Format format, size_t index) {
  uint16_t half = 0;
  if (format == Format::kFloat32) {
    float value = 0;
    std::memcpy(&value, bytes.data() + 4 * index, 4);
    return value;
  }
  std::memcpy(&half, bytes.data() + 2 * index, 2);
  return format == Format::kBFloat16 ? BFloat16ToFloat(half) : Float16ToFloat(half);
}

void Set(std::vector<std::byte>& bytes, Format format, size_t index, float value) {
  if (format == Format::kFloat32) {
    std::memcpy(bytes.data() + 4 * index, &value, 4);
    return;
  }
  const uint16_t half = format == Format::kBFloat16 ? FloatToBFloat16(value) : FloatToFloat16(value);
  std::memcpy(bytes.data() + 2 * index, &half, 2);
}

// A slab of numbers, its rows one element apart from each other, and a rotation by any phases.
struct Slab {
  Slab(Format in, int64_t tokens, Shape of, uint32_t seed)
      : format(in), count(tokens), shape(of), bytes(static_cast<size_t>(tokens * Stride())) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> power(-20, 8);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int32_t d = 0; d < of.dim; ++d) Set(bytes, in, Index(t, d), std::ldexp(normal(random), power(random)));
    }
    for (int64_t i = 0; i < tokens * of.half; ++i) {
      cos.push_back(normal(random));
      sin.push_back(normal(random));
    }
  }

  [[nodiscard]] int64_t Stride() const { return (shape.dim + 1) * FormatBytes(format); }
  [[nodiscard]] size_t Index(int64_t t, int32_t d) const { return static_cast<size_t>(t * (shape.dim + 1) + d); }

  [[nodiscard]] SlabTask Task(SlabView out, Pairing pairing) const {
    return {{bytes.data(), Stride(), format, nullptr},
            out,
            count,
            shape.dim,
            {cos.data(), sin.data(), shape.half, shape.half, pairing}};
  }

  // Number (t, d), turned.
  [[nodiscard]] float Turned(int64_t t, int32_t d, Pairing pairing, int32_t half) const {
    const float value = Get(bytes, format, Index(t, d));
    return TurnedBy(value, t, d, pairing, half, [&](int32_t at) { return Get(bytes, format, Index(t, at)); });
  }

  template <class ValueAt>
  [[nodiscard]] float TurnedBy(float value, int64_t t, int32_t d, Pairing pairing, int32_t half,
                               const ValueAt& at) const {
    if (d >= 2 * half) return value;
    const bool split = pairing == Pairing::kHalfSplit;
    const int32_t i = split ? d % half : d / 2;
    const bool is_first = split ? d < half : d % 2 == 0;
    const auto phase = static_cast<size_t>(t * half + i);
    const Pair pair = RotatePair({at(split ? i : 2 * i), at(split ? i + half : 2 * i + 1)}, {cos[phase], sin[phase]});
    return is_first ? pair.x : pair.y;
  }

  Format format;
  int64_t count;
  Shape shape;
  std::vector<std::byte> bytes;
  std::vector<float> cos, sin;
};

std::vector<float> Scratch(const SlabTask& task) {
  return std::vector<float>(static_cast<size_t>(ScratchFloats(task)), std::numeric_limits<float>::quiet_NaN());
}

class SlabKernelsTest : public testing::TestWithParam<int32_t> {
 protected:
  [[nodiscard]] static const SlabKernels& kernels() { return SupportedSlabKernels().kernels[GetParam()]; }
};

TEST_P(SlabKernelsTest, TurnsBetweenElementTypes) {
  for (const Format in : kElements) {
    for (const Format out : kElements) {
      for (const Pairing pairing : kPairings) {
        for (const Shape shape : kShapes) {
          const Slab slab(in, 5, shape, 1);
          const int64_t stride = (shape.dim + 3) * FormatBytes(out);
          std::vector<std::byte> got(static_cast<size_t>(5 * stride), std::byte{0xAB});
          std::vector<std::byte> expected = got;
          const uint32_t largest = kernels().turn(slab.Task({got.data(), stride, out}, pairing));
          uint32_t expected_largest = 0;
          for (int64_t t = 0; t < 5; ++t) {
            for (int32_t d = 0; d < shape.dim; ++d) {
              const float value = slab.Turned(t, d, pairing, shape.half);
              Set(expected, out, static_cast<size_t>(t * (shape.dim + 3) + d), value);
              expected_largest = std::max(expected_largest, MagnitudeBits(value));
            }
          }
          ASSERT_EQ(got, expected) << kernels().name << " dim " << shape.dim << " half " << shape.half;
          ASSERT_EQ(largest, expected_largest);
        }
      }
    }
  }
}

TEST_P(SlabKernelsTest, EncodesWithAScaleAChannel) {
  constexpr int64_t kTokens = 19;
  for (const Format in : kElements) {
    for (const Format code : kCodes) {
      for (const Pairing pairing : kPairings) {
        for (const Shape shape : kShapes) {
          Slab slab(in, kTokens, shape, 2);
          for (int64_t t = 0; t < kTokens; ++t) Set(slab.bytes, in, slab.Index(t, shape.dim - 1), 0.0F);
          const auto dim = static_cast<size_t>(shape.dim);
          std::vector<std::byte> codes(kTokens * dim);
          std::vector<std::byte> scales(4 * dim + 1);  // unaligned
          const SlabTask task = slab.Task({codes.data(), shape.dim, code}, pairing);
          const uint32_t largest = kernels().encode_channels(task, scales.data() + 1, nullptr, Scratch(task).data());
          float of_all = 0;
          for (int32_t d = 0; d < shape.dim; ++d) {
            float of_channel = 0;
            for (int64_t t = 0; t < kTokens; ++t) {
              of_channel = std::max(of_channel, std::abs(slab.Turned(t, d, pairing, shape.half)));
            }
            of_all = std::max(of_all, of_channel);
            const float scale = GroupScale(of_channel, MaxOf(code));
            float got_scale = 0;
            std::memcpy(&got_scale, scales.data() + 1 + 4 * d, 4);
            ASSERT_EQ(got_scale, scale) << kernels().name << " dim " << shape.dim << " channel " << d;
            for (int64_t t = 0; t < kTokens; ++t) {
              const uint8_t expected = Encode(code, slab.Turned(t, d, pairing, shape.half) * (1.0F / scale));
              ASSERT_EQ(std::to_integer<uint8_t>(codes[static_cast<size_t>(t * shape.dim + d)]), expected)
                  << kernels().name << " dim " << shape.dim << " token " << t << " channel " << d;
            }
          }
          ASSERT_EQ(FloatFromBits(largest), of_all);
        }
      }
    }
  }
}

TEST_P(SlabKernelsTest, EncodesWithAScaleAToken) {
  constexpr int64_t kTokens = 19;
  for (const Format in : kElements) {
    for (const Format code : kCodes) {
      for (const Shape shape : kShapes) {
        Slab slab(in, kTokens, shape, 3);
        for (int32_t d = 0; d < shape.dim; ++d) Set(slab.bytes, in, slab.Index(4, d), 0.0F);
        std::vector<std::byte> codes(kTokens * static_cast<size_t>(shape.dim));
        std::vector<std::byte> scales(4 * kTokens + 1);
        SlabTask task = slab.Task({codes.data(), shape.dim, code}, Pairing::kHalfSplit);
        task.rotation = {};
        const uint32_t largest = kernels().encode_tokens(task, scales.data() + 1, Scratch(task).data());
        float of_all = 0;
        for (int64_t t = 0; t < kTokens; ++t) {
          float of_token = 0;
          for (int32_t d = 0; d < shape.dim; ++d) {
            of_token = std::max(of_token, std::abs(Get(slab.bytes, in, slab.Index(t, d))));
          }
          of_all = std::max(of_all, of_token);
          const float scale = GroupScale(of_token, MaxOf(code));
          float got_scale = 0;
          std::memcpy(&got_scale, scales.data() + 1 + 4 * t, 4);
          ASSERT_EQ(got_scale, scale);
          for (int32_t d = 0; d < shape.dim; ++d) {
            const uint8_t expected = Encode(code, Get(slab.bytes, in, slab.Index(t, d)) * (1.0F / scale));
            ASSERT_EQ(std::to_integer<uint8_t>(codes[static_cast<size_t>(t * shape.dim + d)]), expected)
                << kernels().name << " dim " << shape.dim << " token " << t << " channel " << d;
          }
        }
        ASSERT_EQ(FloatFromBits(largest), of_all);
      }
    }
  }
}

// All numbers of the 16-bit types that the format holds, as they are: the first of every row makes its scale 1.
TEST_P(SlabKernelsTest, EncodesEveryBFloat16AndFloat16) {
  constexpr int32_t kDim = 64;
  for (const Format in : {Format::kBFloat16, Format::kFloat16}) {
    for (const Format code : kCodes) {
      uint32_t bits = 0;
      while (bits < 0x10000) {
        uint16_t row[kDim];
        row[0] = in == Format::kBFloat16 ? FloatToBFloat16(MaxOf(code)) : FloatToFloat16(MaxOf(code));
        for (int32_t d = 1; d < kDim; ++d) {
          const auto value = [&] {
            return std::abs(in == Format::kBFloat16 ? BFloat16ToFloat(static_cast<uint16_t>(bits))
                                                    : Float16ToFloat(static_cast<uint16_t>(bits)));
          };
          while (bits < 0x10000 && !(value() <= MaxOf(code))) ++bits;
          row[d] = static_cast<uint16_t>(bits < 0x10000 ? bits++ : 0);
        }
        std::byte codes[kDim];
        std::byte scale[4];
        SlabTask task;
        task.in = {reinterpret_cast<const std::byte*>(row), 2 * kDim, in, nullptr};
        task.out = {codes, kDim, code};
        task.tokens = 1;
        task.dim = kDim;
        kernels().encode_tokens(task, scale, Scratch(task).data());
        for (int32_t d = 0; d < kDim; ++d) {
          const float value = in == Format::kBFloat16 ? BFloat16ToFloat(row[d]) : Float16ToFloat(row[d]);
          ASSERT_EQ(std::to_integer<uint8_t>(codes[d]), Encode(code, value)) << kernels().name << " " << value;
        }
      }
    }
  }
}

TEST_P(SlabKernelsTest, DecodesEveryCode) {
  constexpr int64_t kTokens = 256;  // token t starts with code t
  for (const Format code : kCodes) {
    for (const Format out : kElements) {
      for (const Pairing pairing : kPairings) {
        for (const Shape shape : kShapes) {
          const Slab slab(Format::kFloat32, kTokens, shape, 4);  // for its rotation
          const auto dim = static_cast<size_t>(shape.dim);
          std::vector<std::byte> codes(kTokens * dim);
          for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i / dim + 37 * (i % dim));
          std::vector<float> scales(std::max<size_t>(dim, kTokens));
          std::mt19937 random(5);
          for (float& scale : scales) scale = std::ldexp(std::uniform_real_distribution<float>(1, 2)(random), -9);
          const auto* scale_bytes = reinterpret_cast<const std::byte*>(scales.data());
          const auto bytes = static_cast<size_t>(FormatBytes(out));
          std::vector<std::byte> by_channel(codes.size() * bytes);
          std::vector<std::byte> by_token(codes.size() * bytes);
          SlabTask task = slab.Task({by_channel.data(), shape.dim * FormatBytes(out), out}, pairing);
          task.in = {codes.data(), shape.dim, code, nullptr};
          kernels().decode_channels(task, scale_bytes, nullptr, Scratch(task).data());
          task.out.data = by_token.data();
          task.rotation = {};
          kernels().decode_tokens(task, scale_bytes);

          std::vector<std::byte> expected(codes.size() * bytes);
          for (size_t i = 0; i < codes.size(); ++i) {
            const auto t = static_cast<int64_t>(i / dim);
            const auto scaled = [&](int32_t d) {
              const auto at = static_cast<size_t>(t) * dim + static_cast<size_t>(d);
              return Decode(code, std::to_integer<uint8_t>(codes[at])) * scales[static_cast<size_t>(d)];
            };
            const auto d = static_cast<int32_t>(i % dim);
            const float channel = slab.TurnedBy(scaled(d), t, d, pairing, shape.half, scaled);
            const float token = Decode(code, std::to_integer<uint8_t>(codes[i])) * scales[static_cast<size_t>(t)];
            for (const auto& [got, value] : {std::pair{&by_channel, channel}, std::pair{&by_token, token}}) {
              Set(expected, out, i, value);
              if (std::isnan(value)) {
                ASSERT_TRUE(std::isnan(Get(*got, out, i))) << kernels().name << " code " << i;
              } else {
                ASSERT_EQ(std::memcmp(got->data() + i * bytes, expected.data() + i * bytes, bytes), 0)
                    << kernels().name << " dim " << shape.dim << " number " << i << " is " << Get(*got, out, i)
                    << ", not " << value;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(SlabKernelsTest, SaysThatANumberIsNotFinite) {
  for (const Format in : kElements) {
    for (const Shape shape : kShapes) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        for (const int32_t d : {0, shape.dim - 1}) {
          Slab slab(in, 3, shape, 6);
          Set(slab.bytes, in, slab.Index(2, d), bad);
          std::vector<std::byte> out(static_cast<size_t>(3 * shape.dim * 4));
          std::vector<std::byte> scales(static_cast<size_t>(4 * std::max(3, shape.dim)));
          SlabTask task = slab.Task({out.data(), shape.dim * 4, Format::kFloat32}, Pairing::kHalfSplit);
          EXPECT_GE(kernels().turn(task), kFloatInfinityBits);
          EXPECT_FALSE(std::isfinite(Get(out, Format::kFloat32, static_cast<size_t>(2 * shape.dim + d))));
          task.out = {out.data(), shape.dim, Format::kE4M3};
          EXPECT_GE(kernels().encode_channels(task, scales.data(), nullptr, Scratch(task).data()), kFloatInfinityBits);
          task.rotation = {};
          EXPECT_GE(kernels().encode_tokens(task, scales.data(), Scratch(task).data()), kFloatInfinityBits);
        }
      }
    }
  }
}

// A NaN whose payload lies below the kept bits, or that rounding would carry over, must not become a number.
TEST_P(SlabKernelsTest, NarrowingKeepsNaN) {
  for (const uint32_t bits : {0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU}) {
    for (const Format out : kElements) {
      const std::vector<float> in(40, std::bit_cast<float>(bits));
      std::vector<std::byte> got(160);
      SlabTask task;
      task.in = {reinterpret_cast<const std::byte*>(in.data()), 160, Format::kFloat32, nullptr};
      task.out = {got.data(), 160, out};
      task.tokens = 1;
      task.dim = 40;
      kernels().turn(task);
      for (size_t i = 0; i < 40; ++i) EXPECT_TRUE(std::isnan(Get(got, out, i))) << kernels().name << " " << bits;
    }
  }
}

// Past the caches or not, on lines of them or beside them: the same bytes, and none but the rows'.
TEST_P(SlabKernelsTest, StreamsTheSameBytes) {
  constexpr int64_t kTokens = 19;
  for (const Shape shape : kShapes) {
    const Slab slab(Format::kBFloat16, kTokens, shape, 8);
    for (const Format format : {Format::kBFloat16, Format::kE4M3, Format::kE5M2, Format::kSteps}) {
      const int64_t row = shape.dim * FormatBytes(format);
      const auto lines = static_cast<int64_t>((static_cast<size_t>(row) + kCacheLine - 1) / kCacheLine * kCacheLine);
      for (const int64_t stride : {row, lines}) {
        for (const int64_t offset : {0, 32}) {
          const auto size = static_cast<size_t>(kTokens * stride + offset);
          CacheLineVector<std::byte> results[2] = {CacheLineVector<std::byte>(size, std::byte{0xAB}),
                                                   CacheLineVector<std::byte>(size, std::byte{0xAB})};
          std::vector<std::byte> scales(static_cast<size_t>(4 * std::max<int64_t>(2 * kTokens, shape.dim)));
          std::vector<std::byte> centres(static_cast<size_t>(2 * shape.dim));
          for (const bool by_channel : {true, false}) {
            for (const bool streamed : {false, true}) {
              SlabTask task = slab.Task({results[streamed].data() + offset, stride, format}, Pairing::kHalfSplit);
              task.streamed = streamed;
              if (!by_channel) task.rotation = {};
              std::vector<float> scratch = Scratch(task);
              if (format == Format::kBFloat16) {
                kernels().turn(task);
              } else if (by_channel) {
                kernels().encode_channels(task, scales.data(), centres.data(), scratch.data());
              } else {
                kernels().encode_tokens(task, scales.data(), scratch.data());
              }
            }
            ASSERT_EQ(results[0], results[1]) << kernels().name << " dim " << shape.dim << " stride " << stride;
          }
          if (format == Format::kBFloat16) continue;

          // The codes of the last, back.
          const auto back_size = static_cast<size_t>(kTokens * 2 * stride);
          CacheLineVector<std::byte> backs[2] = {CacheLineVector<std::byte>(back_size, std::byte{0xAB}),
                                                 CacheLineVector<std::byte>(back_size, std::byte{0xAB})};
          for (const bool by_channel : {true, false}) {
            for (const bool streamed : {false, true}) {
              SlabTask task = slab.Task({backs[streamed].data(), 2 * stride, Format::kBFloat16}, Pairing::kHalfSplit);
              task.in = {results[0].data() + offset, stride, format, nullptr};
              task.streamed = streamed;
              std::vector<float> scratch = Scratch(task);
              if (by_channel) {
                kernels().decode_channels(task, scales.data(), centres.data(), scratch.data());
              } else {
                task.rotation = {};
                kernels().decode_tokens(task, scales.data());
              }
            }
            ASSERT_EQ(backs[0], backs[1]) << kernels().name << " dim " << shape.dim << " stride " << stride;
          }
        }
      }
    }
  }
}

// Rows that move inside one buffer, up and down, by less than their number: as ShiftSlots moves them.
TEST_P(SlabKernelsTest, TurnsOverlappingRows) {
  constexpr Shape kShape{48, 24};
  for (const int64_t offset : {-3, 0, 3}) {
    Slab slab(Format::kBFloat16, 20, kShape, 7);
    const Slab before = slab;
    const int64_t first = offset > 0 ? 13 : 4;
    const int64_t stride = offset > 0 ? -slab.Stride() : slab.Stride();
    SlabTask task;
    task.in = {slab.bytes.data() + first * slab.Stride(), stride, Format::kBFloat16, nullptr};
    task.out = {slab.bytes.data() + (first + offset) * slab.Stride(), stride, Format::kBFloat16};
    task.tokens = 10;
    task.dim = kShape.dim;
    task.rotation = {slab.cos.data(), slab.sin.data(), 0, kShape.half, Pairing::kHalfSplit};
    kernels().turn(task);
    for (int64_t t = 4; t < 14; ++t) {
      for (int32_t d = 0; d < kShape.dim; ++d) {
        const auto at = [&](int32_t channel) { return Get(before.bytes, before.format, before.Index(t, channel)); };
        const float expected = before.TurnedBy(at(d), 0, d, Pairing::kHalfSplit, kShape.half, at);
        ASSERT_EQ(Get(slab.bytes, slab.format, slab.Index(t + offset, d)), BFloat16ToFloat(FloatToBFloat16(expected)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Supported, SlabKernelsTest, testing::Range(0, SupportedSlabKernels().count),
                         [](const auto& info) { return SupportedSlabKernels().kernels[info.param].name; });

}  // namespace
}  // namespace everlong::kv
