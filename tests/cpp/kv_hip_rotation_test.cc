// The body of the GPU kernels, run unit by unit on the host, against the CPU path: the same bits, every element once.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "everlong/kv/rotation.h"
#include "kv_hip_host.h"
#include "kv_reference.h"

namespace everlong::hip {
namespace {

using kv::reference::Frame;
using kv::reference::MakeRope;
using kv::reference::PositionsFrom;

struct Case {
  DType dtype;
  bool interleaved;
  int32_t head_dim;
  int32_t rotary_dim;
};

class UnitsCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, UnitsCase,
                         testing::Values(Case{DType::kFloat32, false, 32, 32}, Case{DType::kFloat32, true, 32, 16},
                                         Case{DType::kBFloat16, false, 64, 64}, Case{DType::kBFloat16, true, 64, 64},
                                         Case{DType::kBFloat16, false, 64, 32}, Case{DType::kBFloat16, true, 64, 16},
                                         Case{DType::kFloat16, false, 64, 48}, Case{DType::kFloat16, true, 16, 0},
                                         // Not a whole number of 16-byte vectors:
                                         Case{DType::kBFloat16, false, 20, 20}, Case{DType::kBFloat16, true, 21, 14},
                                         Case{DType::kFloat32, false, 7, 6}));

// A frame's keys [2, heads, T, D] as a batch, to `out`, which is contiguous.
HeadRows RowsOf(const Frame& frame, int64_t tokens, void* out) {
  const RowStrides in{frame.kv.layer_stride, frame.kv.head_stride, frame.kv.head_dim};
  const RowStrides packed{frame.kv.kv_heads * tokens * frame.kv.head_dim, tokens * frame.kv.head_dim,
                          frame.kv.head_dim};
  return {frame.kv.k, out, frame.dtype, 2, frame.kv.kv_heads, tokens, frame.kv.head_dim, in, packed};
}

TEST_P(UnitsCase, SameBitsAsTheCpu) {
  const auto& [dtype, interleaved, head_dim, rotary_dim] = GetParam();
  const kv::Pairing pairing = interleaved ? kv::Pairing::kInterleaved : kv::Pairing::kHalfSplit;
  const kv::RopeTable rope = MakeRope(rotary_dim, 1e4, 1.139, pairing);
  constexpr int64_t kTokens = 9;
  const std::vector<int64_t> positions = PositionsFrom(123'456, kTokens);
  const Frame frame(2, 3, head_dim, positions, rope, dtype, 1);
  const int32_t half = rotary_dim / 2;
  const PairPhase phase{frame.cos.data(), frame.sin.data(), half, interleaved, 0, half};

  std::vector<unsigned char> expected(frame.k_bytes.size());
  std::vector<unsigned char> got(frame.k_bytes.size(), 0xAB);
  const kv::KeyRows cpu{frame.kv.k,           expected.data(), dtype, 2, 3, kTokens, head_dim, frame.kv.layer_stride,
                        frame.kv.head_stride, head_dim};
  const HeadRows gpu = RowsOf(frame, kTokens, got.data());
  kv::DerotateRows(cpu, frame.cos.data(), frame.sin.data(), half, pairing);
  const bool vectors = host::TurnRows<Turn::kOff>(gpu, phase);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(vectors, head_dim % 16 == 0);  // every case of such a width has whole vectors

  kv::RerotateRows(cpu, positions, rope);
  std::fill(got.begin(), got.end(), 0xAB);
  host::TurnRows<Turn::kOn>(gpu, phase);
  EXPECT_EQ(got, expected);

  // Values: a head without rotated pairs is copied.
  host::TurnRows<Turn::kOff>(gpu, PairPhase{});
  EXPECT_EQ(got, frame.k_bytes);
}

TEST(Units, PhasesOfABatch) {
  const kv::RopeTable rope = MakeRope(16, 1e4, 1.0, kv::Pairing::kHalfSplit);
  const Frame frame(2, 2, 16, PositionsFrom(5, 8), rope, DType::kFloat32, 2);
  // Entry 1 of the batch uses the phases of tokens 4..7, entry 0 those of 0..3.
  const PairPhase phase{frame.cos.data(), frame.sin.data(), 8, false, 4 * 8, 8};
  std::vector<float> got(2 * 2 * 4 * 16);
  std::vector<float> expected(got.size());
  const HeadRows gpu = RowsOf(frame, 4, got.data());
  host::TurnRows<Turn::kOff>(gpu, phase);
  for (int64_t b = 0; b < 2; ++b) {
    const kv::KeyRows cpu{static_cast<const float*>(frame.kv.k) + b * frame.kv.layer_stride,
                          expected.data() + b * 2 * 4 * 16,
                          DType::kFloat32,
                          1,
                          2,
                          4,
                          16,
                          frame.kv.layer_stride,
                          frame.kv.head_stride,
                          16};
    kv::DerotateRows(cpu, frame.cos.data() + b * 32, frame.sin.data() + b * 32, 8, kv::Pairing::kHalfSplit);
  }
  EXPECT_EQ(got, expected);
}

TEST(Units, VectorsOnlyWhereEveryRowIsAligned) {
  alignas(16) float buffer[64] = {};
  alignas(16) float out[64] = {};
  const HeadRows good{buffer, out, DType::kFloat32, 1, 2, 2, 16, {64, 32, 16}, {64, 32, 16}};
  EXPECT_TRUE(AllowsVectors(good, 8, 4));
  EXPECT_FALSE(AllowsVectors(good, 6, 4));  // a vector would hold pairs and copied elements
  HeadRows bad = good;
  bad.in = buffer + 1;
  EXPECT_FALSE(AllowsVectors(bad, 8, 4));
  bad = good;
  bad.out = out + 2;
  EXPECT_FALSE(AllowsVectors(bad, 8, 4));
  for (RowStrides HeadRows::* side : {&HeadRows::in_strides, &HeadRows::out_strides}) {
    for (int64_t RowStrides::* stride : {&RowStrides::b, &RowStrides::h, &RowStrides::t}) {
      bad = good;
      (bad.*side).*stride = 18;
      EXPECT_FALSE(AllowsVectors(bad, 8, 4));
    }
  }
}

}  // namespace
}  // namespace everlong::hip
