#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "everlong/os/residency.h"
#include "os_zones.h"

namespace everlong::os {
namespace {

constexpr ResidencyConfig kConfig{
    .frame_tokens = 100, .sink_tokens = 4, .recalled_tokens = 20, .rolling_tokens = 40, .evict_tokens = 8};

TEST(ResidencyTest, ValidatesEveryField) {
  EXPECT_TRUE(Validate(ResidencyConfig{}).ok());
  EXPECT_TRUE(Validate(kConfig).ok());
  const auto refuses = [](auto change, const char* named) {
    ResidencyConfig config = kConfig;
    change(config);
    const Status status = Validate(config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << named;
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
  };
  refuses([](ResidencyConfig& c) { c.frame_tokens = 0; }, "frame_tokens");
  refuses([](ResidencyConfig& c) { c.sink_tokens = -1; }, "sink_tokens");
  refuses([](ResidencyConfig& c) { c.recalled_tokens = -1; }, "recalled_tokens");
  refuses([](ResidencyConfig& c) { c.rolling_tokens = 0; }, "rolling_tokens");
  refuses([](ResidencyConfig& c) { c.evict_tokens = 0; }, "evict_tokens");
  refuses([](ResidencyConfig& c) { c.frame_tokens = 72; }, "frame_tokens");
  refuses([](ResidencyConfig& c) { c.rolling_tokens = c.evict_tokens = INT32_MAX; }, "frame_tokens");
  ResidencyConfig smallest = kConfig;
  smallest.frame_tokens = 73;
  EXPECT_TRUE(Validate(smallest).ok());
}

TEST(ResidencyTest, BeforeEvictionTheFrameIsAPlainForward) {
  Residency residency(kConfig);
  EXPECT_EQ(residency.Room(), 76);
  for (int64_t t = 0; t < 50; ++t) {
    EXPECT_EQ(residency.NextPosition(), t);
    residency.Append(1);
  }
  EXPECT_EQ(residency.sinks(), 4);
  EXPECT_EQ(residency.rolling(), (TokenSpan{4, 50}));
  EXPECT_EQ(residency.rolling_position(), 4);
  EXPECT_EQ(residency.Room(), 30);
}

TEST(ResidencyTest, FirstEvictionMovesRollingBehindTheRecalledZone) {
  Residency residency(kConfig);
  residency.Append(51);
  EXPECT_EQ(residency.Overflow(), 0) << "rolling holds 47 = M + evict_tokens - 1";
  residency.Append(1);
  ASSERT_EQ(residency.Overflow(), 8);
  EXPECT_EQ(residency.Evict(8).delta, 12) << "token 12 goes from position 12 to 24";
  EXPECT_EQ(residency.rolling(), (TokenSpan{12, 52}));
  EXPECT_EQ(residency.rolling_position(), 24);
  EXPECT_EQ(residency.NextPosition(), 64);
  residency.Append(9);
  EXPECT_EQ(residency.Evict(residency.Overflow()).delta, -9) << "later evictions turn by minus what left";
  EXPECT_EQ(residency.NextPosition(), 64);
}

TEST(ResidencyTest, ResumeOfAShortStreamIsContiguous) {
  Residency residency(kConfig);
  EXPECT_EQ(residency.Resume(44, 44, 0), (TokenSpan{4, 44}));
  EXPECT_FALSE(residency.evicted());
  EXPECT_EQ(residency.NextPosition(), 44);
  EXPECT_EQ(residency.Resume(3, 3, 0), (TokenSpan{3, 3}));
  residency.Append(2);
  EXPECT_EQ(residency.sinks(), 4) << "the sinks go on filling";
  EXPECT_EQ(residency.NextPosition(), 5);
}

TEST(ResidencyTest, ResumeOfALongStreamKeepsSinksAndTheNewest) {
  Residency residency(kConfig);
  EXPECT_EQ(residency.Resume(45, 45, 0), (TokenSpan{5, 45}));
  EXPECT_EQ(residency.sinks(), 4);
  EXPECT_EQ(residency.rolling_position(), 24);
  EXPECT_EQ(residency.NextPosition(), 64);
}

TEST(ResidencyTest, ResumeWhereAnEarlierRollingBegan) {
  Residency residency(kConfig);
  EXPECT_EQ(residency.Resume(60, 60, 0, 15), (TokenSpan{15, 60}));
  EXPECT_EQ(residency.rolling_position(), 24);
  EXPECT_EQ(residency.Resume(50, 50, 0, 4), (TokenSpan{4, 50})) << "46 tokens, but nothing had left that frame";
  EXPECT_FALSE(residency.evicted());
  EXPECT_EQ(residency.Resume(60, 60, 0, 0), (TokenSpan{13, 60})) << "no frame held more than M + evict_tokens - 1";
  EXPECT_EQ(residency.Resume(60, 60, 30, 15), (TokenSpan{30, 60})) << "a gap";
  EXPECT_EQ(residency.Resume(60, 60, 0, 99), (TokenSpan{60, 60}));
}

TEST(ResidencyTest, ResumeStopsAtAGap) {
  Residency residency(kConfig);
  EXPECT_EQ(residency.Resume(30, 2, 20), (TokenSpan{20, 30}));
  EXPECT_EQ(residency.sinks(), 2);
  EXPECT_EQ(residency.rolling_position(), 24);
  residency.Append(1);
  EXPECT_EQ(residency.sinks(), 2) << "tokens behind a gap are no sinks";
  EXPECT_EQ(residency.Resume(10, 0, 10), (TokenSpan{10, 10}));
  EXPECT_EQ(residency.NextPosition(), 24);
}

// Return whether the zones took it over.
bool Adopts(Residency& residency, const Copies& copies) {
  residency.Open(Saved(copies), [](std::span<const TokenSpan>) { return true; });
  return CopiesOf(residency) == copies;
}

ResidencyConfig WithZone(int32_t anchor_tokens, int32_t anchors, int32_t tombstones) {
  ResidencyConfig config = kConfig;
  config.anchor_tokens = anchor_tokens;
  config.anchors = anchors;
  config.tombstones = tombstones;
  return config;
}

TEST(ResidencyTest, TheAnchorZoneIsPartOfTheBudget) {
  EXPECT_TRUE(Validate(WithZone(3, 8, 3)).ok()) << "4 + 27 + 20 + 40 + 8 < 100";
  const Status full = Validate(WithZone(3, 8, 4));
  EXPECT_EQ(full.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(full.message().find("anchor_tokens * anchors + tombstones"), std::string::npos);
  EXPECT_FALSE(Validate(WithZone(-1, 8, 0)).ok());
  EXPECT_FALSE(Validate(WithZone(0, -1, 0)).ok());
  EXPECT_FALSE(Validate(WithZone(0, 0, -1)).ok());
  EXPECT_FALSE(Validate(WithZone(INT32_MAX, INT32_MAX, INT32_MAX)).ok());

  Residency residency(WithZone(3, 4, 2));
  EXPECT_EQ(residency.Room(), 100 - 4 - 14 - 20);
  residency.Append(52);
  EXPECT_EQ(residency.Evict(8).delta, 26) << "token 12 goes from position 12 to 4 + 14 + 20";
  EXPECT_EQ(residency.rolling_position(), 38);
  EXPECT_EQ(residency.Evict(1).delta, -1);
}

TEST(ResidencyTest, WhatIsOutsideIsNeitherSinkNorAnchorNorRolling) {
  Residency residency(WithZone(4, 3, 2));
  residency.Append(10);
  EXPECT_TRUE(residency.Outside({0, 10}).empty()) << "nothing has left";
  residency.BeginTopic(10);
  residency.Append(2);
  residency.BeginTopic(12);  // the topic at 10 has 2 tokens, and the next one's follow on them
  residency.Append(18);
  residency.BeginTopic(30);
  residency.Append(20);
  residency.Evict(28);  // 4 .. 32: of the topic at 30 two tokens
  ASSERT_EQ(CopiesOf(residency).anchors, (std::vector<TokenSpan>{{10, 12}, {12, 16}, {30, 32}}));
  using Runs = std::vector<TokenSpan>;
  EXPECT_EQ(residency.Outside({0, 50}), (Runs{{4, 10}, {16, 30}}));
  EXPECT_EQ(residency.Outside({2, 9}), (Runs{{4, 9}}));
  EXPECT_EQ(residency.Outside({8, 20}), (Runs{{8, 10}, {16, 20}})) << "around two anchors";
  EXPECT_EQ(residency.Outside({10, 16}), Runs{});
  EXPECT_EQ(residency.Outside({11, 18}), (Runs{{16, 18}}));
  EXPECT_EQ(residency.Outside({28, 40}), (Runs{{28, 30}}));
  EXPECT_EQ(residency.Outside({17, 17}), Runs{});
  EXPECT_EQ(residency.Outside({0, 4}), Runs{});
  EXPECT_EQ(residency.Outside({32, 99}), Runs{}) << "rolling, and what is not there yet";
}

TEST(ResidencyTest, TheFirstTokensOfATopicStayWhenTheyLeaveRolling) {
  Residency residency(WithZone(6, 2, 0));
  residency.Append(20);
  residency.BeginTopic(20);
  residency.BeginTopic(20);
  residency.Append(4);
  residency.BeginTopic(24);  // the topic at 20 has 4 tokens
  residency.Append(16);
  std::vector<Keep> keeps = residency.Evict(6).keeps;  // 4 .. 10: the text's own beginning, but for its sinks
  ASSERT_EQ(keeps.size(), 1U);
  EXPECT_EQ(keeps[0].span, (TokenSpan{4, 6}));
  EXPECT_FALSE(keeps[0].tombstone);
  keeps = residency.Evict(12).keeps;  // 10 .. 22
  ASSERT_EQ(keeps.size(), 1U);
  EXPECT_EQ(keeps[0].span, (TokenSpan{20, 22}));
  EXPECT_EQ(CopiesOf(residency).anchors, (std::vector<TokenSpan>{{4, 6}, {20, 22}}));
  EXPECT_EQ(residency.CopyPositions(), (std::vector<int64_t>{4, 5, 6, 7}));
  keeps = residency.Evict(4).keeps;  // 22 .. 26: the topic's rest, and two of the next
  ASSERT_EQ(keeps.size(), 2U);
  EXPECT_EQ(keeps[0].span, (TokenSpan{22, 24}));
  EXPECT_TRUE(keeps[0].dropped.empty());
  EXPECT_EQ(keeps[1].span, (TokenSpan{24, 26}));
  EXPECT_EQ(keeps[1].dropped, (TokenSpan{4, 6})) << "the oldest anchor, whole";
  EXPECT_EQ(CopiesOf(residency).anchors, (std::vector<TokenSpan>{{20, 24}, {24, 26}}));
  EXPECT_EQ(CopiesOf(residency).topics, (std::vector<int64_t>{24}));
}

// Whatever is read, cut and evicted: anchors are the first tokens of the newest topics, and every token that left is in
// exactly one tombstone, of which doing as the keeps say makes the mean.
TEST(ResidencyTest, AnchorZoneAgreesWithItsDefinition) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const ResidencyConfig config =
        WithZone(static_cast<int32_t>(below(4)), static_cast<int32_t>(below(4)), static_cast<int32_t>(below(5)));
    Residency residency(config);
    std::vector<int64_t> topics{0};
    std::vector<int64_t> anchor_slots;
    std::vector<std::pair<double, int64_t>> stones;  // mean of the tokens' numbers, how many
    int64_t left_from = -1;
    for (int step = 0; step < 120; ++step) {
      residency.Append(1 + below(residency.Room()));
      if (below(3) == 0 && topics.back() < residency.stream_end()) {
        topics.push_back(residency.stream_end());
        residency.BeginTopic(residency.stream_end());
      }
      if (residency.rolling().empty()) continue;
      const int64_t tokens = 1 + below(residency.rolling().size());
      if (left_from < 0) left_from = residency.rolling().begin;
      for (const Keep& keep : residency.Evict(tokens).keeps) {
        if (!keep.tombstone) {
          anchor_slots.erase(anchor_slots.begin(), anchor_slots.begin() + keep.dropped.size());
          for (int64_t t = keep.span.begin; t < keep.span.end; ++t) anchor_slots.push_back(t);
          continue;
        }
        const auto mean = static_cast<double>(keep.span.begin + keep.span.end - 1) / 2;
        stones.emplace_back(mean, keep.span.size());
        if (keep.merged < 0) continue;
        auto& first = stones[static_cast<size_t>(keep.merged)];
        const auto next = stones[static_cast<size_t>(keep.merged) + 1];
        ASSERT_EQ(first.second, keep.merged_tokens);
        ASSERT_EQ(next.second, keep.next_tokens);
        const int64_t both = first.second + next.second;
        first.first =
            (first.first * static_cast<double>(first.second) + next.first * static_cast<double>(next.second)) /
            static_cast<double>(both);
        first.second = both;
        stones.erase(stones.begin() + static_cast<ptrdiff_t>(keep.merged) + 1);
      }

      const int64_t left_until = residency.rolling().begin;
      std::vector<std::vector<int64_t>> anchors;
      for (size_t i = 0; i < topics.size(); ++i) {
        const int64_t next = i + 1 < topics.size() ? topics[i + 1] : INT64_MAX;
        std::vector<int64_t> anchor;
        for (int64_t t = topics[i]; t < std::min({topics[i] + config.anchor_tokens, next, left_until}); ++t) {
          if (t >= left_from) anchor.push_back(t);
        }
        if (!anchor.empty()) anchors.push_back(anchor);
      }
      std::vector<int64_t> expected;
      const size_t count = std::min(anchors.size(), static_cast<size_t>(config.anchors));
      for (size_t i = anchors.size() - count; i < anchors.size(); ++i) {
        expected.insert(expected.end(), anchors[i].begin(), anchors[i].end());
      }
      ASSERT_EQ(anchor_slots, expected) << seed;

      const Copies zone = CopiesOf(residency);
      ASSERT_LE(zone.tombstones.size(), static_cast<size_t>(config.tombstones));
      ASSERT_EQ(stones.size(), zone.tombstones.size());
      int64_t reached = left_from;
      for (size_t i = 0; i < stones.size(); ++i) {
        const TokenSpan& span = zone.tombstones[i].span;
        ASSERT_EQ(span.begin, reached);
        ASSERT_EQ(span.size(), zone.tombstones[i].tokens);
        ASSERT_NEAR(stones[i].first, static_cast<double>(span.begin + span.end - 1) / 2, 1e-6);
        reached = span.end;
      }
      if (config.tombstones > 0) {
        ASSERT_EQ(reached, left_until);
      }
      const std::vector<int64_t> positions = residency.CopyPositions();
      ASSERT_EQ(positions.size(), stones.size() + anchor_slots.size());
      ASSERT_TRUE(std::is_sorted(positions.begin(), positions.end()));
      if (!positions.empty()) {
        ASSERT_GE(positions.front(), config.sink_tokens);
        ASSERT_LT(positions.back(), config.sink_tokens + CopySlots(config));
      }
    }

    Residency again(config);
    again.Resume(residency.stream_end(), residency.sinks(), 0, residency.rolling().begin);
    if (again.rolling() != residency.rolling() || !again.evicted()) continue;
    ASSERT_TRUE(Adopts(again, CopiesOf(residency))) << seed;
    EXPECT_EQ(CopiesOf(again), CopiesOf(residency));
    EXPECT_EQ(again.CopyPositions(), residency.CopyPositions());
  }
}

TEST(ResidencyTest, AdoptsOnlyAZoneThatFits) {
  Residency residency(WithZone(3, 2, 2));
  residency.Resume(100, 100, 0);
  ASSERT_EQ(residency.rolling().begin, 60);
  const Copies zone{{{{4, 20}, 16}, {{20, 60}, 30}}, {{8, 11}, {30, 32}}, {59, 100}};
  EXPECT_TRUE(Adopts(residency, zone));
  EXPECT_EQ(CopiesOf(residency), zone);
  const auto refuses = [](auto change) {
    Residency other(WithZone(3, 2, 2));
    other.Resume(100, 100, 0);
    const Copies before = CopiesOf(other);
    Copies changed{{{{4, 20}, 16}, {{20, 60}, 30}}, {{8, 11}, {30, 32}}, {59, 100}};
    change(changed);
    EXPECT_FALSE(Adopts(other, changed));
    EXPECT_EQ(CopiesOf(other), before);
  };
  refuses([](Copies& z) { z.tombstones.push_back({{60, 61}, 1}); });
  refuses([](Copies& z) { z.tombstones[1].span.end = 61; });
  refuses([](Copies& z) { z.tombstones[0].span.begin = 3; });
  refuses([](Copies& z) { z.tombstones[1].span.begin = 19; });
  refuses([](Copies& z) { z.tombstones[0].tokens = 0; });
  refuses([](Copies& z) { z.tombstones[0].tokens = 17; });
  refuses([](Copies& z) { z.anchors.push_back({40, 41}); });
  refuses([](Copies& z) { z.anchors[0].end = 12; });
  refuses([](Copies& z) { z.anchors[1] = {59, 61}; });
  refuses([](Copies& z) { z.anchors[1] = {31, 31}; });
  refuses([](Copies& z) { z.topics = {100, 59}; });
  refuses([](Copies& z) { z.topics = {101}; });
  Residency whole(WithZone(3, 2, 2));
  whole.Resume(30, 30, 0);
  EXPECT_FALSE(Adopts(whole, zone)) << "nothing has left that frame";
}

TEST(ResidencyDeathTest, RefusesToLeaveItsBounds) {
  Residency residency(kConfig);
  EXPECT_DEATH(residency.Append(residency.Room() + 1), "CHECK failed");
  EXPECT_DEATH(residency.Evict(1), "CHECK failed");
  EXPECT_DEATH(residency.Fill(1, {}), "CHECK failed") << "the zone is not open yet";
  residency.Append(residency.Room());
  EXPECT_DEATH(residency.Evict(0), "CHECK failed");
  residency.Evict(1);
  residency.Fill(20, {});
  EXPECT_DEATH(residency.Fill(21, {}), "CHECK failed");
  Residency with_anchors(WithZone(2, 2, 0));
  with_anchors.BeginTopic(10);
  EXPECT_DEATH(with_anchors.BeginTopic(9), "CHECK failed");
}

}  // namespace
}  // namespace everlong::os
