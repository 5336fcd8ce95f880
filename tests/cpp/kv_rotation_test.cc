#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "everlong/kv/rotation.h"
#include "kv_reference.h"

namespace everlong::kv {
namespace {

using reference::Frame;
using reference::MakeRope;
using reference::PositionsFrom;
using reference::RotatedElement;

TEST(RopeTable, AnglesAreRightAtTenMillion) {
  const RopeTable rope = MakeRope(128, 1e6, 1.2, Pairing::kHalfSplit);
  std::vector<float> cos(64);
  std::vector<float> sin(64);
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{131'071}, int64_t{10'000'000}, int64_t{-5}}) {
    rope.CosSin(position, cos, sin);
    for (size_t i = 0; i < 64; ++i) {
      const long double angle = static_cast<long double>(position) * rope.inv_freq[i];
      EXPECT_NEAR(cos[i], 1.2 * static_cast<double>(std::cos(angle)), 1e-7) << position << " " << i;
      EXPECT_NEAR(sin[i], 1.2 * static_cast<double>(std::sin(angle)), 1e-7) << position << " " << i;
    }
  }
}

TEST(RopeTable, ValidateNamesWhatIsWrong) {
  RopeTable rope = MakeRope(16, 1e4, 1.0, Pairing::kHalfSplit);
  EXPECT_TRUE(Validate(rope, 16).ok());
  EXPECT_EQ(Validate(rope, 15).code(), StatusCode::kInvalidArgument);
  rope.attention_scaling = 0;
  EXPECT_NE(Validate(rope, 16).message().find("attention_scaling"), std::string::npos);
  rope.attention_scaling = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(Validate(rope, 16).ok());
  rope.attention_scaling = 1;
  rope.inv_freq[3] = std::numeric_limits<double>::infinity();
  EXPECT_NE(Validate(rope, 16).message().find("inv_freq[3]"), std::string::npos);
}

struct Case {
  DType dtype;
  Pairing pairing;
  int32_t rotary_dim;
  double attention_scaling;
};

class RotationCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, RotationCase,
                         testing::Values(Case{DType::kFloat32, Pairing::kHalfSplit, 24, 1.0},
                                         Case{DType::kFloat32, Pairing::kHalfSplit, 10, 1.139},
                                         Case{DType::kFloat32, Pairing::kInterleaved, 24, 1.347},
                                         Case{DType::kFloat32, Pairing::kInterleaved, 6, 1.0},
                                         Case{DType::kFloat32, Pairing::kHalfSplit, 0, 1.0},
                                         Case{DType::kFloat16, Pairing::kHalfSplit, 24, 1.139},
                                         Case{DType::kBFloat16, Pairing::kHalfSplit, 24, 1.0},
                                         Case{DType::kBFloat16, Pairing::kInterleaved, 12, 1.139}));

// What one stored rounding, and the fp32 arithmetic around it, may change in a pair of the given magnitude.
double Tolerance(DType dtype, double magnitude, int roundings) {
  return magnitude * (roundings * reference::HalfUlp(dtype) + 1e-6) + 1e-7;
}

double Norm(const double* row, int32_t dim) {
  double sum = 0;
  for (int32_t d = 0; d < dim; ++d) sum += row[d] * row[d];
  return std::sqrt(sum);
}

TEST_P(RotationCase, DerotateGivesTheKeyBeforeRope) {
  const Case& param = GetParam();
  constexpr int32_t kDim = 24;
  const RopeTable rope = MakeRope(param.rotary_dim, 1e4, param.attention_scaling, param.pairing);
  const Frame frame(2, 3, kDim, PositionsFrom(9'999'900, 70), rope, param.dtype, 1);
  std::vector<unsigned char> out(frame.k_bytes.size());
  const KeyRows rows{frame.kv.k,           out.data(), param.dtype, 2, 3, 70, kDim, frame.kv.layer_stride,
                     frame.kv.head_stride, kDim};
  DerotateRows(rows, frame.cos.data(), frame.sin.data(), param.rotary_dim / 2, param.pairing);
  for (size_t i = 0; i < frame.plain_k.size(); ++i) {
    const double norm = Norm(frame.plain_k.data() + i / kDim * kDim, kDim);
    ASSERT_NEAR(frame.Get(out.data(), i), frame.plain_k[i], Tolerance(param.dtype, norm, 2)) << i;
  }
}

TEST_P(RotationCase, RerotateGivesTheKeyOfThePosition) {
  const Case& param = GetParam();
  constexpr int32_t kDim = 24;
  const RopeTable rope = MakeRope(param.rotary_dim, 1e4, param.attention_scaling, param.pairing);
  const RopeTable no_rope = MakeRope(0, 1e4, 1.0, param.pairing);
  // Slots of a frame without RoPE hold plain keys; rows are taken with a stride, every other slot.
  const Frame frame(2, 3, kDim, PositionsFrom(0, 140), no_rope, param.dtype, 2);
  std::vector<int64_t> positions(70);
  for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int64_t>(t * t) * 2'000;
  std::vector<unsigned char> out(frame.k_bytes.size() / 2);
  const KeyRows rows{frame.kv.k,           out.data(), param.dtype, 2, 3, 70, kDim, frame.kv.layer_stride,
                     frame.kv.head_stride, 2 * kDim};
  RerotateRows(rows, positions, rope);
  for (int64_t head = 0; head < 6; ++head) {
    for (int64_t t = 0; t < 70; ++t) {
      const double* plain = frame.plain_k.data() + frame.Index(head / 3, head % 3, 2 * t);
      for (int64_t d = 0; d < kDim; ++d) {
        const double expected = RotatedElement(plain, d, positions[static_cast<size_t>(t)], rope);
        const double tolerance = Tolerance(param.dtype, Norm(plain, kDim) * param.attention_scaling, 2);
        ASSERT_NEAR(frame.Get(out.data(), static_cast<size_t>((head * 70 + t) * kDim + d)), expected, tolerance);
      }
    }
  }
}

TEST(Rotation, InPlaceEqualsOutOfPlace) {
  const RopeTable rope = MakeRope(16, 1e4, 1.139, Pairing::kHalfSplit);
  const Frame frame(1, 2, 16, PositionsFrom(100, 90), rope, DType::kBFloat16, 3);
  std::vector<unsigned char> out(frame.k_bytes.size());
  KeyRows rows{frame.kv.k, out.data(), DType::kBFloat16, 1, 2, 90, 16, frame.kv.layer_stride, frame.kv.head_stride, 16};
  DerotateRows(rows, frame.cos.data(), frame.sin.data(), 8, Pairing::kHalfSplit);
  rows.out = frame.kv.k;
  DerotateRows(rows, frame.cos.data(), frame.sin.data(), 8, Pairing::kHalfSplit);
  EXPECT_EQ(out, frame.k_bytes);
}

// What the slots should hold after a shift: keys at their old position + delta, everything else as it was.
void ExpectShifted(int64_t source, int64_t target, int64_t count, int64_t delta, const RopeTable& rope) {
  constexpr int64_t kSlots = 300;
  constexpr int32_t kDim = 20;
  Frame frame(2, 2, kDim, PositionsFrom(1'000, kSlots), rope, DType::kFloat32, 4);
  ASSERT_TRUE(ShiftSlots(frame.kv, frame.phase, source, target, count, delta, rope).ok());
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    const bool moved = slot >= target && slot < target + count;
    const int64_t from = moved ? slot - target + source : slot;
    const int64_t position = 1'000 + from + (moved ? delta : 0);
    const auto half = static_cast<int64_t>(rope.inv_freq.size());
    for (int64_t i = 0; i < half; ++i) {
      const long double angle = static_cast<long double>(position) * rope.inv_freq[static_cast<size_t>(i)];
      const auto index = static_cast<size_t>(slot * half + i);
      ASSERT_NEAR(frame.cos[index], rope.attention_scaling * static_cast<double>(std::cos(angle)), 4e-7);
      ASSERT_NEAR(frame.sin[index], rope.attention_scaling * static_cast<double>(std::sin(angle)), 4e-7);
    }
    for (int64_t head = 0; head < 4; ++head) {
      const double* plain = frame.plain_k.data() + frame.Index(head / 2, head % 2, from);
      for (int64_t d = 0; d < kDim; ++d) {
        const size_t to = frame.Index(head / 2, head % 2, slot, d);
        ASSERT_NEAR(frame.Get(frame.kv.k, to), RotatedElement(plain, d, position, rope), 1e-6 * Norm(plain, kDim))
            << "slot " << slot << " head " << head << " d " << d;
        ASSERT_EQ(frame.Get(frame.kv.v, to),
                  static_cast<float>(frame.plain_v[frame.Index(head / 2, head % 2, from, d)]));
      }
    }
  }
}

TEST(ShiftSlots, EqualsRotationFromScratch) {
  const RopeTable rope = MakeRope(20, 1e4, 1.0, Pairing::kHalfSplit);
  ExpectShifted(150, 20, 100, -130, rope);  // disjoint
  ExpectShifted(90, 20, 200, -70, rope);    // overlapping, down
  ExpectShifted(20, 90, 200, 70, rope);     // overlapping, up
  ExpectShifted(30, 30, 40, -17, rope);     // in place
  ExpectShifted(30, 10, 200, 0, rope);      // moved, not turned
  ExpectShifted(299, 0, 1, -299, rope);
  ExpectShifted(300, 0, 0, 5, rope);  // nothing
}

TEST(ShiftSlots, KeepsAttentionScalingAndWhatIsNotRotated) {
  ExpectShifted(90, 20, 200, -70, MakeRope(8, 1e4, 1.347, Pairing::kHalfSplit));
  ExpectShifted(90, 20, 200, -70, MakeRope(12, 1e4, 1.139, Pairing::kInterleaved));
  ExpectShifted(90, 20, 200, -70, MakeRope(0, 1e4, 1.0, Pairing::kHalfSplit));
}

TEST(ShiftSlots, RefusesRangesOutsideTheFrame) {
  const RopeTable rope = MakeRope(8, 1e4, 1.0, Pairing::kHalfSplit);
  const Frame frame(1, 1, 8, PositionsFrom(0, 16), rope, DType::kFloat32, 5);
  const auto shift = [&](int64_t source, int64_t target, int64_t count) {
    return ShiftSlots(frame.kv, frame.phase, source, target, count, 1, rope).code();
  };
  const std::vector<unsigned char> before = frame.k_bytes;
  EXPECT_EQ(shift(-1, 0, 2), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(0, -1, 2), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(10, 0, 7), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(0, 10, 7), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(0, 0, -1), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(1, 0, std::numeric_limits<int64_t>::max()), StatusCode::kInvalidArgument);
  EXPECT_EQ(shift(std::numeric_limits<int64_t>::max(), 0, 1), StatusCode::kInvalidArgument);
  const RopeTable other = MakeRope(6, 1e4, 1.0, Pairing::kHalfSplit);
  EXPECT_FALSE(ShiftSlots(frame.kv, frame.phase, 0, 1, 2, 1, other).ok());
  EXPECT_EQ(frame.k_bytes, before);
}

}  // namespace
}  // namespace everlong::kv
