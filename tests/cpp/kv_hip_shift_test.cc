// shift_kv_'s chains, steps and units, run on the host, against the CPU path: the same bits whatever order a step runs
// in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "everlong/kv/rotation.h"
#include "kv_hip_host.h"
#include "kv_reference.h"

namespace everlong::hip {
namespace {

using kv::reference::ExpectSame;
using kv::reference::Frame;
using kv::reference::MakeRope;
using kv::reference::PositionsFrom;

constexpr int64_t kSlots = 700;

// As ShiftKv enqueues a staged shift.
void ShiftStaged(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift, const ShiftTurn& turn,
                 const PairPhase& by, bool backwards) {
  const int64_t rows_a_step = std::min(shift.count, kStagedRows);
  std::vector<float> workspace(static_cast<size_t>(frame.layers * frame.kv_heads * rows_a_step * frame.head_dim));
  for (const SlotShift& step : StagedSteps(shift)) {
    for (const bool keys : {true, false}) {
      const HeadRows rows = SlotRows(frame, keys ? frame.k : frame.v, step.source, step.target, step.count);
      host::TurnRows<Turn::kOn>(ToWorkspace(rows, workspace.data()), keys ? by : PairPhase{}, backwards);
      host::TurnRows<Turn::kOn>(FromWorkspace(rows, workspace.data()), PairPhase{}, backwards);
    }
  }
  const auto phases = static_cast<size_t>(shift.count * phase.half);
  std::vector<float> cos(phases);
  std::vector<float> sin(phases);
  for (size_t i = 0; i < phases; ++i) {
    ComposePhase(static_cast<int64_t>(i), phase, shift.source, turn, Divisor(phase.half), cos.data(), sin.data());
  }
  std::copy(cos.begin(), cos.end(), phase.cos + shift.target * phase.half);
  std::copy(sin.begin(), sin.end(), phase.sin + shift.target * phase.half);
}

// body(i) for every i in [0, count).
template <class Body>
void InOrder(int64_t count, bool backwards, const Body& body) {
  for (int64_t i = 0; i < count; ++i) body(backwards ? count - 1 - i : i);
}

// As ShiftKv enqueues it.
void ShiftOnHost(const kv::FrameKv& frame, const kv::SlotPhase& phase, const SlotShift& shift, const ShiftTurn& turn,
                 bool backwards) {
  const PairPhase by{turn.key_cos, turn.key_sin, turn.is_identity ? 0 : phase.half, turn.interleaved, 0, 0};
  if (shift.count == 0) return;
  if (IsStaged(shift)) {
    ShiftStaged(frame, phase, shift, turn, by, backwards);
    return;
  }
  const ShiftChains chains(shift);
  const bool vectors = AllowsVectors(frame, by.half, host::VectorWidth(frame.dtype));
  host::Dispatch(frame.dtype, vectors, by.interleaved, [&](auto element, auto width, auto interleaved) {
    using Element = decltype(element);
    for (int32_t task = 0; task < frame.layers * frame.kv_heads; ++task) {
      const int32_t head = task % frame.kv_heads;
      const int32_t layer = task / frame.kv_heads;
      const Divisor by_key(UnitsPerRow(frame.head_dim, by.half, width()));
      InOrder(chains.chains * by_key.divisor() + host::kBeyond, backwards, [&](int64_t i) {
        ShiftUnits<Element, width(), interleaved(), true>(i, head, layer, chains, frame, by, by_key);
      });
      const Divisor by_value(UnitsPerRow(frame.head_dim, 0, width()));
      InOrder(chains.chains * by_value.divisor() + host::kBeyond, backwards, [&](int64_t i) {
        ShiftUnits<Element, width(), false, false>(i, head, layer, chains, frame, PairPhase{}, by_value);
      });
    }
  });
  if (phase.half == 0) return;
  InOrder(chains.chains * phase.half + host::kBeyond, backwards,
          [&](int64_t i) { ShiftPhases(i, chains, phase, turn, Divisor(phase.half)); });
}

struct Case {
  SlotShift shift;
  int64_t delta;
  DType dtype = DType::kBFloat16;
  bool interleaved = false;
  int32_t rotary_dim = 16;
};

class ShiftCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, ShiftCase,
                         testing::Values(Case{{300, 0, 400}, -300},               // chains of one row and of two
                                         Case{{0, 100, 600}, 100},                // the last first
                                         Case{{1, 0, 699}, -1, DType::kFloat32},  // staged
                                         Case{{0, 3, 697}, 12'345, DType::kFloat16, true},      // staged, backwards
                                         Case{{63, 0, 637}, -63, DType::kBFloat16, true, 8},    // staged
                                         Case{{64, 0, 636}, -64, DType::kBFloat16, false, 12},  // no whole vectors
                                         Case{{5, 5, 100}, 7, DType::kFloat32, true, 6},        // turns in place
                                         Case{{350, 0, 350}, 0}, Case{{20, 10, 300}, 0},        // moves only
                                         Case{{10, 500, 17}, -1'000'000},
                                         Case{{3, 9, 40}, 5, DType::kFloat32, false, 0}, Case{{3, 9, 0}, 5}));

TEST_P(ShiftCase, SameBitsAsTheCpuInAnyOrder) {
  const Case& param = GetParam();
  const kv::Pairing pairing = param.interleaved ? kv::Pairing::kInterleaved : kv::Pairing::kHalfSplit;
  const kv::RopeTable rope = MakeRope(param.rotary_dim, 1e4, 1.139, pairing);
  const Frame expected(2, 2, 16, PositionsFrom(4'000, kSlots), rope, param.dtype, 3);
  ASSERT_TRUE(kv::ShiftSlots(expected.kv, expected.phase, param.shift.source, param.shift.target, param.shift.count,
                             param.delta, rope)
                  .ok());

  const size_t half = rope.inv_freq.size();
  std::vector<double> cos(half);
  std::vector<double> sin(half);
  std::vector<float> key_cos(half);
  std::vector<float> key_sin(half);
  for (size_t i = 0; i < half; ++i) {
    cos[i] = std::cos(static_cast<double>(param.delta) * rope.inv_freq[i]);
    sin[i] = std::sin(static_cast<double>(param.delta) * rope.inv_freq[i]);
  }
  kv::RopeTable without_scaling = rope;
  without_scaling.attention_scaling = 1.0;
  without_scaling.CosSin(param.delta, key_cos, key_sin);
  const ShiftTurn turn{cos.data(), sin.data(), key_cos.data(), key_sin.data(), param.interleaved, param.delta == 0};
  for (const bool backwards : {false, true}) {
    const Frame got(2, 2, 16, PositionsFrom(4'000, kSlots), rope, param.dtype, 3);
    ShiftOnHost(got.kv, got.phase, param.shift, turn, backwards);
    ExpectSame(got, expected);
  }
}

TEST(Shift, EveryRowMovesOnceAndIsReadBeforeItIsWritten) {
  for (const int64_t target : {0, 1, 40, 99, 100, 101, 170, 300, 900}) {
    const SlotShift shift{100, target, 600};
    std::vector<int> moved(600, 0);
    const ShiftChains chains(shift);
    for (int64_t chain = 0; chain < chains.chains; ++chain) {
      int64_t row = chains.First(chain);
      for (int32_t left = chains.Length(chain); left > 0; --left, row += chains.Step()) {
        ASSERT_TRUE(row >= 0 && row < 600);
        ++moved[static_cast<size_t>(row)];
        const int64_t replaced = target + row - 100;  // the row of the source that it is written over
        if (replaced >= 0 && replaced < 600 && replaced != row) {
          EXPECT_EQ(replaced, row - chains.Step());
        }
      }
    }
    EXPECT_EQ(moved, std::vector<int>(600, 1)) << target;

    std::ranges::fill(moved, 0);
    for (const SlotShift& step : StagedSteps(shift)) {
      EXPECT_EQ(step.target - step.source, target - 100);
      for (int64_t row = 0; row < step.count; ++row) ++moved[static_cast<size_t>(step.source - 100 + row)];
    }
    EXPECT_EQ(moved, std::vector<int>(600, 1)) << target;
  }
}

}  // namespace
}  // namespace everlong::hip
