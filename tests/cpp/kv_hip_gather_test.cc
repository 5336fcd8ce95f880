// gather_kv_'s units, run on the host, against the CPU path: the same bits whatever order they run in.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "../../hip/gather_units.h"
#include "everlong/kv/gather.h"
#include "kv_hip_host.h"
#include "kv_reference.h"

namespace everlong::hip {
namespace {

using kv::reference::ExpectSame;
using kv::reference::Frame;
using kv::reference::MakeRope;
using kv::reference::PositionsFrom;

// As GatherKv enqueues it.
void GatherOnHost(const Frame& from, const Frame& to, const SlotGather& gather, const TakenRope& rope, bool backwards) {
  const int32_t half = from.phase.half;
  std::vector<float> cos(static_cast<size_t>(gather.count * half));
  std::vector<float> sin(cos.size());
  const GatherTurn turn{cos.data(), sin.data()};
  for (int64_t i = 0; i < gather.count * half; ++i) {
    ComposeGather(i, from.phase, to.phase, gather, rope, Divisor(half), turn);
  }
  const int32_t vector = host::VectorWidth(to.dtype);
  const bool vectors = AllowsVectors(from.kv, half, vector) && AllowsVectors(to.kv, half, vector);
  host::Dispatch(to.dtype, vectors, rope.interleaved, [&](auto element, auto width, auto interleaved) {
    using Element = decltype(element);
    const auto run = [&](auto keys) {
      const int32_t units = UnitsPerRow(to.kv.head_dim, keys() ? half : 0, width());
      const int64_t count = gather.count * units + host::kBeyond;
      host::ForSpans(to.kv, [&](const HeadLayers& span) {
        for (int64_t i = 0; i < count; ++i) {
          GatherUnits<Element, width(), interleaved(), keys()>(backwards ? count - 1 - i : i, span, from.kv, to.kv,
                                                               half, gather, turn, Divisor(units));
        }
      });
    };
    run(std::false_type{});
    run(std::true_type{});
  });
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

  const SlotGather gather{sources.data(), targets.data(), positions.data(), param.count};
  for (const bool backwards : {false, true}) {
    const Frame got(2, 2, 16, PositionsFrom(9, 140), rope, param.dtype, 4);
    GatherOnHost(from, got, gather, {rope.inv_freq.data(), rope.attention_scaling, param.interleaved}, backwards);
    ExpectSame(got, expected);
  }
}

}  // namespace
}  // namespace everlong::hip
