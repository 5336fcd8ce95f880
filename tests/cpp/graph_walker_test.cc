#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "everlong/graph/walker.h"

namespace everlong::graph {
namespace {

// Nodes with a number each; ways lead along edges. What is seen of a node is its number, as kAskedWords.
class Map final : public WalkSpace {
 public:
  std::map<int32_t, std::vector<int32_t>> edges;
  std::vector<int32_t> starts;
  std::map<int32_t, float> worth;

  Result<std::vector<Way>> Starts() override { return WaysTo(starts, kFromSearch); }
  Result<std::vector<Way>> Load(const Way& way, int32_t number) override {
    if (way.node == broken) return IoError("broken");
    loaded_.insert(way.node);
    return WaysTo(edges[way.node], number);
  }
  [[nodiscard]] bool Loaded(int32_t node) const override { return loaded_.contains(node); }
  [[nodiscard]] bool Brings(int32_t node, int32_t other) const override { return node == other; }
  void Refresh(Way& way) const override { RefreshStop(way.features); }
  void RefreshStop(WalkFeatures& features) const override {
    At(features, WalkFeature::kCovered) = static_cast<float>(loaded_.size()) / 100.0F;
  }

  int32_t broken = -1;

 private:
  [[nodiscard]] std::vector<Way> WaysTo(const std::vector<int32_t>& nodes, int32_t from) const {
    std::vector<Way> ways;
    for (const int32_t node : nodes) {
      Way way{node, from, {}};
      At(way.features, WalkFeature::kAskedWords) = worth.contains(node) ? worth.at(node) : 0.0F;
      ways.push_back(way);
    }
    return ways;
  }

  std::set<int32_t> loaded_;
};

// logit = weight of each feature, summed; of `ending` what it says.
WalkerPolicy Linear(const std::map<WalkFeature, float>& weights, float ending = -100) {
  std::vector<float> inner(2 * kWalkFeatures, 0.0F);
  for (const auto& [feature, weight] : weights) inner[static_cast<size_t>(feature)] = weight;
  inner[kWalkFeatures + static_cast<size_t>(WalkFeature::kStop)] = 1;
  const Result<WalkerPolicy> policy =
      WalkerPolicy::Of(inner, std::vector<float>{0, 0}, std::vector<float>{1, ending}, 0);
  EXPECT_TRUE(policy.ok());
  return *policy;
}

WalkerPolicy ByWorth(float ending = -100) { return Linear({{WalkFeature::kAskedWords, 1}}, ending); }

TEST(WalkerTest, TheLogitIsThatOfTheFormula) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr size_t kUnits = 5;
  std::vector<float> inner(kUnits * kWalkFeatures);
  std::vector<float> bias(kUnits);
  std::vector<float> outer(kUnits);
  for (std::vector<float>* const of : {&inner, &bias, &outer})
    std::ranges::generate(*of, [&] { return normal(random); });
  const WalkerPolicy policy = *WalkerPolicy::Of(inner, bias, outer, 0.5F);
  for (int i = 0; i < 20; ++i) {
    WalkFeatures features;
    std::ranges::generate(features, [&] { return normal(random); });
    long double expected = 0.5L;
    for (size_t unit = 0; unit < kUnits; ++unit) {
      long double sum = bias[unit];
      for (size_t at = 0; at < kWalkFeatures; ++at) {
        sum += static_cast<long double>(inner[unit * kWalkFeatures + at]) * features[at];
      }
      expected += outer[unit] * std::max(0.0L, sum);
    }
    EXPECT_NEAR(policy.Logit(features), static_cast<double>(expected), 1e-5);
  }
}

TEST(WalkerTest, NamesOfFeaturesAreDistinct) {
  std::set<std::string_view> names;
  for (size_t at = 0; at < kWalkFeatures; ++at) {
    const std::string_view name = NameOf(static_cast<WalkFeature>(at));
    EXPECT_FALSE(name.empty());
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

// Best first over all ways that are open, as one that keeps a list and sorts it anew would go.
TEST(WalkerTest, ItGoesWhereABruteForceBestFirstSearchGoes) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    Map map;
    const int32_t nodes = 30;
    std::uniform_int_distribution<int32_t> any(0, nodes - 1);
    for (int32_t node = 0; node < nodes; ++node) {
      map.worth[node] = static_cast<float>(any(random)) / 10.0F;  // ties are likely
      for (int i = 0; i < 3; ++i) map.edges[node].push_back(any(random));
    }
    map.starts = {any(random), any(random)};
    const WalkBudget budget{1 + trial % 9, 1 + trial % 4, 1000};

    struct Open {
      int32_t node;
      int32_t depth;
    };
    std::vector<Open> open;
    for (const int32_t start : map.starts) open.push_back({start, 0});
    std::vector<int32_t> expected;
    std::set<int32_t> seen;
    while (std::ssize(expected) < budget.loads && !open.empty()) {
      const auto best = std::ranges::max_element(open, {}, [&](const Open& of) { return map.worth[of.node]; });
      const Open taken = *best;
      expected.push_back(taken.node);
      seen.insert(taken.node);
      std::erase_if(open, [&](const Open& of) { return seen.contains(of.node); });
      if (taken.depth >= budget.hops) continue;
      for (const int32_t next : map.edges[taken.node]) {
        if (!seen.contains(next)) open.push_back({next, taken.depth + 1});
      }
    }
    const Result<WalkTrace> trace = Walk(ByWorth(), map, budget);
    ASSERT_TRUE(trace.ok());
    EXPECT_EQ(trace->loads, expected) << trial;
    EXPECT_EQ(trace->stopped, std::ssize(expected) < budget.loads);
  }
}

TEST(WalkerTest, ItEndsWhereThePolicySaysSo) {
  Map map;
  map.starts = {1, 2, 3};
  map.worth = {{1, 3.0F}, {2, 1.0F}, {3, 0.5F}};
  const WalkTrace trace = *Walk(ByWorth(2.0F), map, {});
  EXPECT_EQ(trace.loads, std::vector<int32_t>{1});
  EXPECT_TRUE(trace.stopped);
  EXPECT_EQ(trace.steps.back().ways[static_cast<size_t>(trace.steps.back().taken)].node, -1);
}

TEST(WalkerTest, BudgetsHold) {
  Map map;
  for (int32_t node = 0; node < 100; ++node) {
    map.worth[node] = static_cast<float>(node);
    map.edges[node] = {node + 1};
  }
  map.starts = {0};
  EXPECT_EQ(Walk(ByWorth(), map, {50, 3, 1000})->loads, (std::vector<int32_t>{0, 1, 2, 3}));  // three hops
  Map again = Map();
  again.starts = {0, 1, 2, 3, 4, 5};
  again.worth = map.worth;
  const WalkTrace few = *Walk(ByWorth(), again, {50, 3, 4});
  EXPECT_EQ(few.looked_at, 4);
  EXPECT_EQ(few.loads, (std::vector<int32_t>{3, 2, 1, 0}));
  for (const WalkBudget& none : {WalkBudget{0, 1, 1}, WalkBudget{1, 0, 1}, WalkBudget{1, 1, 0}}) {
    EXPECT_EQ(Walk(ByWorth(), again, none).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(WalkerTest, TheTeacherTakesWhatBringsGold) {
  Map map;
  map.starts = {1, 2};
  map.edges = {{1, {5}}, {2, {6}}, {6, {7}}};
  map.worth = {{1, 9.0F}, {5, 8.0F}};
  WalkChoice choice;
  choice.by = WalkChoice::By::kTeacher;
  choice.gold = {2, 7};
  choice.keep_all = true;
  const WalkTrace trace = *Walk(ByWorth(), map, {8, 4, 100}, choice);
  // 7 is not in sight behind 2: the policy's best way onward, until it is.
  ASSERT_GE(trace.loads.size(), 1U);
  EXPECT_EQ(trace.loads.front(), 2);
  EXPECT_EQ(trace.loads.back(), 7);
  EXPECT_TRUE(trace.stopped);
  for (const WalkStep& step : trace.steps) {
    const bool any = std::ranges::any_of(step.ways, &SeenWay::right);
    EXPECT_EQ(step.ways[static_cast<size_t>(step.taken)].right, any);
  }
}

TEST(WalkerTest, WaysAreDrawnAsLikelyAsThePolicyHoldsThem) {
  std::map<int32_t, int> drawn;
  constexpr int kDraws = 4000;
  for (int seed = 0; seed < kDraws; ++seed) {
    Map map;
    map.starts = {1, 2};
    map.worth = {{1, 0.0F}, {2, 1.0F}};
    WalkChoice choice;
    choice.by = WalkChoice::By::kDraw;
    choice.seed = static_cast<uint64_t>(seed);
    const WalkTrace trace = *Walk(ByWorth(-1.0F), map, {1, 1, 10}, choice);
    ++drawn[trace.loads.empty() ? -1 : trace.loads[0]];
  }
  const double sum = 1 + std::exp(1.0) + std::exp(-1.0);
  EXPECT_NEAR(drawn[1] / static_cast<double>(kDraws), 1 / sum, 0.03);
  EXPECT_NEAR(drawn[2] / static_cast<double>(kDraws), std::exp(1.0) / sum, 0.03);
  EXPECT_NEAR(drawn[-1] / static_cast<double>(kDraws), std::exp(-1.0) / sum, 0.03);
}

TEST(WalkerTest, WhatTheWalkSetsOfFeaturesIsTold) {
  Map map;
  map.starts = {1, 2};
  map.edges = {{1, {3, 4}}, {2, {3}}};
  map.worth = {{1, 9.0F}, {2, 8.0F}, {3, 1.0F}, {4, 0.5F}};
  WalkChoice choice;
  choice.keep_all = true;
  const WalkTrace trace = *Walk(ByWorth(), map, {3, 2, 100}, choice);
  ASSERT_EQ(trace.loads, (std::vector<int32_t>{1, 2, 3}));
  const auto way = std::ranges::find(trace.steps[2].ways, 3, &SeenWay::node);
  ASSERT_NE(way, trace.steps[2].ways.end());
  EXPECT_FLOAT_EQ(At(way->features, WalkFeature::kDegree), 1.0F);  // from both loads
  EXPECT_FLOAT_EQ(At(way->features, WalkFeature::kDepth), 0.5F);
  EXPECT_FLOAT_EQ(At(way->features, WalkFeature::kLoadsLeft), 1.0F / 3.0F);
  EXPECT_FLOAT_EQ(At(way->features, WalkFeature::kCovered), 0.02F);
  EXPECT_FLOAT_EQ(At(way->features, WalkFeature::kVisits), 0.0F);
}

TEST(WalkerTest, AFailureOfTheSpaceIsThatOfTheWalk) {
  Map map;
  map.starts = {1};
  map.broken = 1;
  EXPECT_EQ(Walk(ByWorth(), map, {}).status().code(), StatusCode::kIoError);
}

}  // namespace
}  // namespace everlong::graph
