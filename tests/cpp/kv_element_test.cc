#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "everlong/kv/element.h"
#include "kv_reference.h"

namespace everlong::kv {
namespace {

// OFP8 E4M3: 1 sign, 4 exponent (bias 7), 3 fraction bits; only S.1111.111 is NaN.
double E4M3Value(uint32_t code) {
  const uint32_t exponent = (code >> 3) & 15U;
  const uint32_t fraction = code & 7U;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction / 8.0, -6) : std::ldexp(1.0 + fraction / 8.0, static_cast<int>(exponent) - 7);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

TEST(Element, DecodesEveryE4M3Code) {
  for (uint32_t code = 0; code < 256; ++code) {
    const double expected = E4M3Value(code);
    const float decoded = E4M3ToFloat(static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(decoded)) << code;
    } else {
      EXPECT_EQ(decoded, expected) << code;
      EXPECT_EQ(std::signbit(decoded), std::signbit(expected)) << code;
      EXPECT_EQ(FloatToE4M3(decoded), code);
    }
  }
}

TEST(Element, EncodesEveryBFloat16ToTheNearestE4M3Code) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = reference::BFloat16Value(static_cast<uint16_t>(bits));
    const uint8_t code = FloatToE4M3(static_cast<float>(value));
    if (std::isnan(value)) {
      ASSERT_EQ(code & 0x7FU, 0x7FU) << bits;
      continue;
    }
    const uint32_t sign = bits >> 15 << 7;
    const uint32_t nearest = std::abs(value) > 448 ? 0x7EU : reference::NearestCode(value, 0x7F, E4M3Value);
    ASSERT_EQ(code, sign | nearest) << "value " << value;
  }
}

// bf16 inputs never lie a little beside a tie: floats next to every midpoint of two codes do.
TEST(Element, EncodesAroundEveryE4M3Tie) {
  for (uint32_t code = 0; code < 0x7E; ++code) {
    const auto tie = static_cast<float>((E4M3Value(code) + E4M3Value(code + 1)) / 2);
    EXPECT_EQ(FloatToE4M3(tie), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(FloatToE4M3(std::nextafter(tie, 0.0F)), code);
    EXPECT_EQ(FloatToE4M3(std::nextafter(tie, 1e9F)), code + 1);
    EXPECT_EQ(FloatToE4M3(-std::nextafter(tie, 1e9F)), 0x80U | (code + 1));
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

TEST(Element, ScaleOfAGroup) {
  EXPECT_EQ(E4M3Scale(0.0F), 1.0F);
  EXPECT_EQ(E4M3Scale(448.0F), 1.0F);
  EXPECT_EQ(E4M3Scale(3.5F), 3.5F / 448.0F);
  const float smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(E4M3Scale(smallest), std::numeric_limits<float>::min());
}

TEST(Element, UnrotateUndoesRotate) {
  const float c = 1.139F * 0.6F;  // m cos, m sin of one angle, m != 1
  const float s = 1.139F * 0.8F;
  const Pair turned = RotatePair({3.0F, -5.0F}, c, s);
  EXPECT_NEAR(turned.x, 1.139 * (3.0 * 0.6 + 5.0 * 0.8), 1e-5);
  EXPECT_NEAR(turned.y, 1.139 * (-5.0 * 0.6 + 3.0 * 0.8), 1e-5);
  const Pair back = UnrotatePair(turned, c, s);
  EXPECT_NEAR(back.x, 3.0, 1e-6);
  EXPECT_NEAR(back.y, -5.0, 1e-6);
}

}  // namespace
}  // namespace everlong::kv
