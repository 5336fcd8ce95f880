#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "everlong/base/element.h"
#include "kv_reference.h"

namespace everlong::kv {
namespace {

// An OFP8 format by its definition: 1 sign, `exponent_bits`, `fraction_bits`, `bias`.
struct Fp8 {
  uint8_t (*encode)(float);
  float (*decode)(uint8_t);
  int exponent_bits, fraction_bits, bias;
  uint32_t largest;   // code of the largest finite number
  uint32_t infinity;  // its code, or one that no magnitude has

  [[nodiscard]] double Value(uint32_t code) const {
    const uint32_t magnitude = code & 0x7FU;
    const double sign = (code & 0x80U) != 0 ? -1.0 : 1.0;
    if (magnitude == infinity) return sign * std::numeric_limits<double>::infinity();
    if (magnitude > largest) return std::numeric_limits<double>::quiet_NaN();
    const double fraction = std::ldexp(magnitude & ((1U << fraction_bits) - 1), -fraction_bits);
    const int exponent = static_cast<int>(magnitude >> fraction_bits);
    return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias));
  }
};

constexpr Fp8 kE4M3Format{FloatToE4M3, E4M3ToFloat, 4, 3, 7, 0x7E, 0x100};
constexpr Fp8 kE5M2Format{FloatToE5M2, E5M2ToFloat, 5, 2, 15, 0x7B, 0x7C};

class Fp8Test : public testing::TestWithParam<Fp8> {};

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Test, testing::Values(kE4M3Format, kE5M2Format),
                         [](const auto& info) { return info.param.bias == 7 ? "E4M3" : "E5M2"; });

TEST_P(Fp8Test, DecodesEveryCode) {
  const Fp8& format = GetParam();
  for (uint32_t code = 0; code < 256; ++code) {
    const double expected = format.Value(code);
    const float decoded = format.decode(static_cast<uint8_t>(code));
    EXPECT_EQ(std::signbit(decoded), (code & 0x80U) != 0) << code;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(decoded)) << code;
      EXPECT_NE(std::bit_cast<uint32_t>(decoded) & 0x00400000U, 0U) << code << " is not quiet";
      EXPECT_TRUE(std::isnan(format.decode(format.encode(decoded))));
    } else {
      EXPECT_EQ(decoded, expected) << code;
      if (!std::isinf(expected)) {
        EXPECT_EQ(format.encode(decoded), code);
      }
    }
  }
  EXPECT_EQ(format.Value(format.largest), format.bias == 7 ? kE4M3Max : kE5M2Max);
}

// Every input of a 16-bit type against the nearest code, found by search.
TEST_P(Fp8Test, EncodesEveryBFloat16AndFloat16ToTheNearestCode) {
  const Fp8& format = GetParam();
  for (const auto value_of : {reference::BFloat16Value, reference::Float16Value}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const double value = value_of(static_cast<uint16_t>(bits));
      const uint8_t code = format.encode(static_cast<float>(value));
      if (std::isnan(value)) {
        ASSERT_EQ(code & 0x7FU, 0x7FU) << bits;
        continue;
      }
      const uint32_t sign = bits >> 15 << 7;
      const uint32_t nearest =
          std::abs(value) > format.Value(format.largest)
              ? format.largest
              : reference::NearestCode(value, format.largest + 1, [&](uint32_t c) { return format.Value(c); });
      ASSERT_EQ(code, sign | nearest) << "value " << value;
    }
  }
}

// 16-bit inputs seldom lie a little beside a tie: floats next to every midpoint of two codes do.
TEST_P(Fp8Test, EncodesAroundEveryTie) {
  const Fp8& format = GetParam();
  for (uint32_t code = 0; code < format.largest; ++code) {
    const auto tie = static_cast<float>((format.Value(code) + format.Value(code + 1)) / 2);
    EXPECT_EQ(format.encode(tie), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(format.encode(std::nextafter(tie, 0.0F)), code);
    EXPECT_EQ(format.encode(std::nextafter(tie, 1e9F)), code + 1);
    EXPECT_EQ(format.encode(-std::nextafter(tie, 1e9F)), 0x80U | (code + 1));
  }
}

TEST_P(Fp8Test, ScaleOfAGroup) {
  const Fp8& format = GetParam();
  const auto largest = static_cast<float>(format.Value(format.largest));
  EXPECT_EQ(GroupScale(0.0F, largest), 1.0F);
  EXPECT_EQ(GroupScale(largest, largest), 1.0F);
  EXPECT_EQ(GroupScale(3.5F, largest), 3.5F / largest);
  EXPECT_EQ(GroupScale(std::numeric_limits<float>::denorm_min(), largest), std::numeric_limits<float>::min());
  // The largest of a group gets the largest code, although scale and reciprocal are rounded.
  for (uint32_t step = 0; step < 100'000; ++step) {
    const float value = std::ldexp(1.0F + static_cast<float>(step) * 1e-5F, static_cast<int>(step % 230) - 105);
    ASSERT_EQ(format.encode(value * (1.0F / GroupScale(value, largest))), format.largest) << value;
  }
}

TEST(Element, WidensEveryBFloat16AndFloat16) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double bfloat16 = reference::BFloat16Value(half);
    const double float16 = reference::Float16Value(half);
    if (std::isnan(bfloat16)) {
      ASSERT_TRUE(std::isnan(BFloat16ToFloat(half)));
      ASSERT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(BFloat16ToFloat(half)))));
    } else {
      ASSERT_EQ(BFloat16ToFloat(half), bfloat16);
      ASSERT_EQ(FloatToBFloat16(BFloat16ToFloat(half)), half);
    }
    if (std::isnan(float16)) {
      ASSERT_TRUE(std::isnan(Float16ToFloat(half)));
      ASSERT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(Float16ToFloat(half)))));
    } else {
      ASSERT_EQ(Float16ToFloat(half), float16);
      ASSERT_EQ(FloatToFloat16(Float16ToFloat(half)), half);
    }
  }
}

template <class Narrow, class ValueOf>
void ExpectTiesToEven(uint32_t finite_codes, const Narrow& narrow, const ValueOf& value_of) {
  for (uint32_t code = 0; code + 1 < finite_codes; ++code) {
    const auto tie =
        static_cast<float>((value_of(static_cast<uint16_t>(code)) + value_of(static_cast<uint16_t>(code + 1))) / 2);
    ASSERT_EQ(narrow(tie), code % 2 == 0 ? code : code + 1) << code;
    ASSERT_EQ(narrow(std::nextafter(tie, 0.0F)), code);
    ASSERT_EQ(narrow(std::nextafter(tie, std::numeric_limits<float>::max())), code + 1);
    ASSERT_EQ(narrow(-std::nextafter(tie, 0.0F)), 0x8000U | code);
  }
}

TEST(Element, NarrowsAroundEveryTie) {
  ExpectTiesToEven(0x7C00, FloatToFloat16, reference::Float16Value);
  ExpectTiesToEven(0x7F80, FloatToBFloat16, reference::BFloat16Value);
}

TEST(Element, NarrowingOverflowsToInfinity) {
  EXPECT_EQ(FloatToFloat16(65519.996F), 0x7BFF);
  EXPECT_EQ(FloatToFloat16(65520.0F), 0x7C00);
  EXPECT_EQ(FloatToFloat16(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7F80);
  // A NaN whose payload lies below the kept bits must not become infinity.
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7F800001U)))));
}

TEST(Element, TheInversePhaseUndoesARotation) {
  const Phase phase{1.139F * 0.6F, 1.139F * 0.8F};  // m cos, m sin of one angle, m != 1
  const Pair turned = RotatePair({3.0F, -5.0F}, phase);
  EXPECT_NEAR(turned.x, 1.139 * (3.0 * 0.6 + 5.0 * 0.8), 1e-5);
  EXPECT_NEAR(turned.y, 1.139 * (-5.0 * 0.6 + 3.0 * 0.8), 1e-5);
  const Pair back = RotatePair(turned, InversePhase(phase));
  EXPECT_NEAR(back.x, 3.0, 1e-6);
  EXPECT_NEAR(back.y, -5.0, 1e-6);
}

}  // namespace
}  // namespace everlong::kv
