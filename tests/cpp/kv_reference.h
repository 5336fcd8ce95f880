// What the kv tests compare with: the same maths in fp64, written from the formulas and sharing no code with the core.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "everlong/base/dtype.h"
#include "everlong/kv/codec.h"
#include "everlong/kv/frame_kv.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/rope_table.h"

namespace everlong::kv::reference {

using kv::AllCodecs;

// The value of a bfloat16 or binary16 by its definition: sign, exponent and fraction fields.
inline double ValueOfFields(uint32_t bits, int exponent_bits, int fraction_bits, int bias) {
  const uint32_t fraction = bits & ((1U << fraction_bits) - 1);
  const uint32_t exponent = (bits >> fraction_bits) & ((1U << exponent_bits) - 1);
  const double sign = ((bits >> (exponent_bits + fraction_bits)) & 1U) != 0 ? -1.0 : 1.0;
  if (exponent == (1U << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  const double significand = std::ldexp(static_cast<double>(fraction), -fraction_bits) + (exponent == 0 ? 0.0 : 1.0);
  return sign * std::ldexp(significand, static_cast<int>(exponent == 0 ? 1U : exponent) - bias);
}

inline double BFloat16Value(uint16_t bits) { return ValueOfFields(bits, 8, 7, 127); }
inline double Float16Value(uint16_t bits) { return ValueOfFields(bits, 5, 10, 15); }

// The format's number nearest to `value`, ties to the even code, over all finite codes below `codes` (positive half).
template <class ValueOf>
uint32_t NearestCode(double value, uint32_t codes, const ValueOf& value_of) {
  uint32_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t code = 0; code < codes; ++code) {
    const double distance = std::abs(value_of(code) - std::abs(value));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

// The nearest binary16: a multiple of 2^-10 of its power of two, rounded in fp64. |value| below 65504.
inline uint16_t RoundToFloat16(double value) {
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), -14);
  const double steps = std::nearbyint(std::ldexp(std::abs(value), 10 - exponent));  // ties to even
  const auto magnitude = static_cast<uint32_t>((exponent + 14) * 1024 + static_cast<int>(steps));
  return static_cast<uint16_t>(magnitude | (value < 0 ? 0x8000U : 0U));
}

// The nearer of the two bfloat16 around a float.
inline uint16_t RoundToBFloat16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const uint32_t below = bits & 0xFFFF0000U;
  const uint32_t above = below + 0x10000U;
  const double distance_below = std::abs(static_cast<double>(std::bit_cast<float>(below)) - std::bit_cast<float>(bits));
  const double distance_above = std::abs(static_cast<double>(std::bit_cast<float>(above)) - std::bit_cast<float>(bits));
  const bool up = distance_above < distance_below || (distance_above == distance_below && ((below >> 16) & 1U) != 0);
  return static_cast<uint16_t>((up ? above : below) >> 16);
}

// Element d of m R(position) k.
inline double RotatedElement(const double* k, int64_t d, int64_t position, const RopeTable& rope) {
  const auto half = static_cast<int64_t>(rope.inv_freq.size());
  if (d >= 2 * half) return k[d];
  const bool split = rope.pairing == Pairing::kHalfSplit;
  const int64_t i = split ? d % half : d / 2;
  const bool is_first = split ? d < half : d % 2 == 0;
  const double x = k[split ? i : 2 * i];
  const double y = k[split ? i + half : 2 * i + 1];
  const long double angle = static_cast<long double>(position) * rope.inv_freq[static_cast<size_t>(i)];
  const auto c = static_cast<double>(std::cos(angle));
  const auto s = static_cast<double>(std::sin(angle));
  return rope.attention_scaling * (is_first ? x * c - y * s : y * c + x * s);
}

inline RopeTable MakeRope(int32_t rotary_dim, double theta, double attention_scaling, Pairing pairing) {
  RopeTable rope;
  for (int32_t i = 0; i < rotary_dim / 2; ++i) rope.inv_freq.push_back(std::pow(theta, -2.0 * i / rotary_dim));
  rope.attention_scaling = attention_scaling;
  rope.pairing = pairing;
  return rope;
}

// A frame whose slot t holds the key of position `positions[t]`, made from un-rotated keys that are kept in fp64.
struct Frame {
  Frame(int32_t layers, int32_t kv_heads, int32_t head_dim, std::vector<int64_t> slot_positions, RopeTable table,
        DType type, uint32_t seed)
      : positions(std::move(slot_positions)), rope(std::move(table)), dtype(type) {
    const auto slots = static_cast<int64_t>(positions.size());
    kv.layers = layers;
    kv.kv_heads = kv_heads;
    kv.head_dim = head_dim;
    kv.slots = slots;
    kv.head_stride = slots * head_dim;
    kv.layer_stride = kv.head_stride * kv_heads;
    kv.dtype = dtype;
    const auto count = static_cast<size_t>(kv.layer_stride * layers);
    plain_k.resize(count);
    plain_v.resize(count);
    k_bytes.resize(count * DTypeSize(dtype));
    v_bytes.resize(count * DTypeSize(dtype));
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (double& value : plain_k) value = normal(random);
    for (double& value : plain_v) value = normal(random);
    kv.k = k_bytes.data();
    kv.v = v_bytes.data();
    const auto half = static_cast<int64_t>(rope.inv_freq.size());
    cos.resize(static_cast<size_t>(slots * half));
    sin.resize(static_cast<size_t>(slots * half));
    for (int64_t t = 0; t < slots; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const long double angle =
            static_cast<long double>(positions[static_cast<size_t>(t)]) * rope.inv_freq[static_cast<size_t>(i)];
        cos[static_cast<size_t>(t * half + i)] = static_cast<float>(rope.attention_scaling * std::cos(angle));
        sin[static_cast<size_t>(t * half + i)] = static_cast<float>(rope.attention_scaling * std::sin(angle));
      }
    }
    phase = {cos.data(), sin.data(), static_cast<int32_t>(half)};
    for (size_t row = 0; row < count; row += static_cast<size_t>(head_dim)) {
      const size_t slot = row / static_cast<size_t>(head_dim) % positions.size();
      for (int64_t d = 0; d < head_dim; ++d) {
        Set(kv.k, row + static_cast<size_t>(d), RotatedElement(plain_k.data() + row, d, positions[slot], rope));
        Set(kv.v, row + static_cast<size_t>(d), plain_v[row + static_cast<size_t>(d)]);
      }
    }
  }

  [[nodiscard]] size_t Index(int64_t layer, int64_t head, int64_t slot, int64_t d = 0) const {
    return static_cast<size_t>(layer * kv.layer_stride + head * kv.head_stride + slot * kv.head_dim + d);
  }

  void Set(void* base, size_t index, double value) const {
    if (dtype == DType::kFloat32) {
      static_cast<float*>(base)[index] = static_cast<float>(value);
    } else if (dtype == DType::kBFloat16) {
      static_cast<uint16_t*>(base)[index] = RoundToBFloat16(value);
    } else {
      static_cast<uint16_t*>(base)[index] = RoundToFloat16(value);
    }
  }

  [[nodiscard]] double Get(const void* base, size_t index) const {
    if (dtype == DType::kFloat32) return static_cast<const float*>(base)[index];
    const uint16_t bits = static_cast<const uint16_t*>(base)[index];
    return dtype == DType::kBFloat16 ? BFloat16Value(bits) : Float16Value(bits);
  }

  std::vector<int64_t> positions;  // [slots]
  RopeTable rope;
  DType dtype;
  std::vector<double> plain_k, plain_v;  // [L, Hkv, F, D], un-rotated
  std::vector<unsigned char> k_bytes, v_bytes;
  std::vector<float> cos, sin;  // [F, half]
  FrameKv kv;
  SlotPhase phase;

  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
};

// All bits of keys, values and phases.
inline void ExpectSame(const Frame& got, const Frame& expected) {
  EXPECT_EQ(got.k_bytes, expected.k_bytes);
  EXPECT_EQ(got.v_bytes, expected.v_bytes);
  EXPECT_EQ(got.cos, expected.cos);
  EXPECT_EQ(got.sin, expected.sin);
}

inline std::vector<int64_t> PositionsFrom(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

// Half a unit in the last place of the dtype, relative.
inline double HalfUlp(DType dtype) {
  if (dtype == DType::kFloat32) return 0x1p-24;
  return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

}  // namespace everlong::kv::reference
