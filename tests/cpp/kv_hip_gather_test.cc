// gather_kv_'s units, run on the host, against the CPU path: the same bits whatever order they run in.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "../../hip/gather_units.h"
#include "everlong/kv/gather.h"
#include "kv_hip_host.h"
#include "kv_reference.h"

namespace everlong::hip {
namespace {

using kv::reference::Frame;
using kv::reference::MakeRope;
using kv::reference::PositionsFrom;

// As GatherKv enqueues it.
void GatherOnHost(const Frame& from, const Frame& to, const SlotGather& gather, const TakenPhase& taken,
                  bool backwards) {
  const int32_t half = from.phase.half;
  std::vector<float> cos(static_cast<size_t>(gather.count * half));
  std::vector<float> sin(cos.size());
  for (int64_t i = 0; i < gather.count * half; ++i) {
    ComposeGather(i, from.phase, to.phase, gather, taken, Divisor(half), cos.data(), sin.data());
  }
  for (const bool keys : {true, false}) {
    const HeadRows rows = keys ? GatheredRows(from.kv, from.kv.k, to.kv, to.kv.k, gather.count)
                               : GatheredRows(from.kv, from.kv.v, to.kv, to.kv.v, gather.count);
    const PairPhase phase = keys ? PairPhase{cos.data(), sin.data(), half, taken.interleaved, 0, half} : PairPhase{};
    const bool vectors = AllowsVectors(rows, phase.half, host::VectorWidth(rows.dtype));
    host::Dispatch(rows.dtype, vectors, phase.interleaved, [&](auto element, auto width, auto interleaved) {
      const int64_t units = UnitCount(rows, phase.half, width());
      if (units == 0) return;
      const RowDivisors by = DivisorsOf(rows, phase.half, width());
      for (int64_t i = 0; i < units; ++i) {
        GatherUnit<decltype(element), width(), interleaved()>(backwards ? units - 1 - i : i, rows, gather, phase, by);
      }
    });
  }
}

struct Case {
  int64_t count = 0;
  DType dtype = DType::kBFloat16;
  bool interleaved = false;
  int32_t rotary_dim = 16;
  bool in_order = false;
};

class GatherCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, GatherCase,
                         testing::Values(Case{100}, Case{100, DType::kFloat32, true}, Case{77, DType::kFloat16},
                                         Case{100, DType::kBFloat16, true, 8}, Case{31, DType::kBFloat16, false, 12},
                                         Case{100, DType::kFloat32, false, 0}, Case{0},
                                         Case{100, DType::kBFloat16, false, 16, true}));

TEST_P(GatherCase, SameBitsAsTheCpuInAnyOrder) {
  const Case& param = GetParam();
  const kv::Pairing pairing = param.interleaved ? kv::Pairing::kInterleaved : kv::Pairing::kHalfSplit;
  const kv::RopeTable rope = MakeRope(param.rotary_dim, 1e4, 1.139, pairing);
  std::vector<int64_t> sources(120);
  std::vector<int64_t> targets(140);
  std::iota(sources.begin(), sources.end(), 0);
  std::iota(targets.begin(), targets.end(), 0);
  std::mt19937 random(7);
  if (!param.in_order) {
    std::shuffle(sources.begin(), sources.end(), random);
    std::shuffle(targets.begin(), targets.end(), random);
  }
  sources.resize(static_cast<size_t>(param.count));
  targets.resize(static_cast<size_t>(param.count));
  std::vector<int64_t> positions(sources.size());
  for (int64_t& position : positions) position = static_cast<int64_t>(random() % 100'000);

  const Frame from(2, 2, 16, PositionsFrom(4'000, 120), rope, param.dtype, 3);
  const Frame expected(2, 2, 16, PositionsFrom(9, 140), rope, param.dtype, 4);
  ASSERT_TRUE(
      kv::GatherSlots(from.kv, from.phase, sources, expected.kv, expected.phase, targets, positions, rope).ok());

  const size_t half = rope.inv_freq.size();
  std::vector<float> cos(positions.size() * half);
  std::vector<float> sin(cos.size());
  for (size_t row = 0; row < positions.size(); ++row) {
    rope.CosSin(positions[row], std::span(cos).subspan(row * half, half), std::span(sin).subspan(row * half, half));
  }
  const SlotGather gather{sources.data(), targets.data(), param.count};
  for (const bool backwards : {false, true}) {
    const Frame got(2, 2, 16, PositionsFrom(9, 140), rope, param.dtype, 4);
    GatherOnHost(from, got, gather, {cos.data(), sin.data(), param.interleaved}, backwards);
    EXPECT_EQ(got.k_bytes, expected.k_bytes);
    EXPECT_EQ(got.v_bytes, expected.v_bytes);
    EXPECT_EQ(got.cos, expected.cos);
    EXPECT_EQ(got.sin, expected.sin);
  }
}

}  // namespace
}  // namespace everlong::hip
