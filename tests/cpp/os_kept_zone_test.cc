#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "../../cpp/os/kept_zone.h"
#include "everlong/os/memory_os.h"
#include "os_zones.h"

namespace everlong::os {
namespace {

using Tokens = std::vector<int64_t>;

Around In(int64_t sinks, int64_t rolling_from, int64_t end) { return {sinks, {rolling_from, end}, true}; }

TEST(KeptZoneTest, ValidatesEveryField) {
  EXPECT_TRUE(Validate(KeptConfig{}, 512).ok()) << "off";
  EXPECT_TRUE(Validate(KeptConfig{.tokens = 64}, 512).ok());
  const auto refuses = [](const KeptConfig& config, const char* named) {
    const Status status = Validate(config, 512);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << named;
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
  };
  refuses({.tokens = -1}, "kept_tokens");
  refuses({.tokens = 63}, "expected 0 or at least 64");
  refuses({.share = 0}, "kept_share");
  refuses({.rungs = 0}, "kept_rungs");
  refuses({.rungs = kMostRungs + 1}, "kept_rungs");
}

TEST(KeptZoneTest, EachRungKeepsHalf) {
  const KeptZone zone({.tokens = 512});
  EXPECT_EQ((Tokens{zone.TokensOn(0, 512), zone.TokensOn(1, 512), zone.TokensOn(2, 512), zone.TokensOn(3, 512)}),
            (Tokens{64, 32, 16, 8}));
  EXPECT_EQ(zone.TokensOn(0, 9), 2) << "rounded up";
  EXPECT_EQ(zone.TokensOn(3, 1), 1);
}

TEST(KeptZoneTest, WhatWasChosenEntersWhenItLeaves) {
  KeptZone zone({.tokens = 8, .share = 2, .rungs = 2});
  zone.Choose({0, 8}, Tokens{5, 1, 6, 3});
  EXPECT_TRUE(zone.Held().empty()) << "all in rolling";
  EXPECT_TRUE(zone.Settle(4, {}).empty());
  EXPECT_EQ(zone.Held(), (Tokens{1, 3}));
  const std::vector<TokenSpan> anchors{{2, 4}, {5, 6}};
  zone.Settle(8, anchors);
  EXPECT_EQ(zone.Held(), (Tokens{1, 3, 6})) << "5 left as an anchor; 3 was here before";
  zone.Hide({{0, 2}, {6, 9}});
  EXPECT_EQ(zone.Held(), (Tokens{1, 3, 6}));
  EXPECT_EQ(zone.Shown(), (Tokens{3}));
  zone.Hide({});
  EXPECT_EQ(zone.Shown(), (Tokens{1, 3, 6}));
}

TEST(KeptZoneTest, TheOldestAreTrimmedAgainByTheOrderOfTheirScores) {
  KeptZone zone({.tokens = 6, .share = 2, .rungs = 2});
  zone.Choose({0, 8}, Tokens{5, 1, 6, 3});
  zone.Settle(8, {});
  zone.Choose({8, 16}, Tokens{8, 15, 9, 10});
  const std::vector<ZoneEvent> trimmed = zone.Settle(16, {});
  ASSERT_EQ(trimmed.size(), 1U);
  EXPECT_EQ(trimmed[0].span, (TokenSpan{0, 8}));
  EXPECT_EQ(trimmed[0].tokens, 2);
  EXPECT_EQ(trimmed[0].what, EventKind::kTrimAgain);
  EXPECT_EQ(zone.Held(), (Tokens{1, 5, 8, 9, 10, 15}));
  zone.Choose({16, 24}, Tokens{16, 17, 18, 19});
  zone.Settle(24, {});
  EXPECT_EQ(zone.Held(), (Tokens{1, 5, 8, 15, 16, 17})) << "a rung of 3 slots holds no block of 4";
  zone.Choose({24, 32}, Tokens{31});
  EXPECT_EQ(zone.Settle(32, {}).size(), 1U);
  EXPECT_EQ(zone.Held(), (Tokens{8, 15, 16, 17, 31})) << "the last rung held 6 of 3: its oldest left";
}

// However blocks come and leave: the zone is what its definition says, found by brute force.
TEST(KeptZoneTest, AgreesWithItsDefinition) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const KeptConfig config{.tokens = static_cast<int32_t>(24 + below(60)),
                            .share = static_cast<int32_t>(1 + below(5)),
                            .rungs = static_cast<int32_t>(1 + below(5))};
    ASSERT_TRUE(Validate(config, 24).ok());
    KeptZone zone(config);
    struct Block {
      int64_t length, rung;
      Tokens tokens;
    };
    std::vector<Block> blocks;
    int64_t end = 0;
    int64_t left = 0;
    for (int step = 0; step < 60; ++step) {
      const int64_t length = 1 + below(24);
      Tokens tokens(static_cast<size_t>(length));
      for (int64_t i = 0; i < length; ++i) tokens[static_cast<size_t>(i)] = end + i;
      std::shuffle(tokens.begin(), tokens.end(), random);
      tokens.resize(static_cast<size_t>((length + config.share - 1) / config.share));
      zone.Choose({end, end + length}, tokens);
      blocks.push_back({length, 0, tokens});
      end += length;
      left += below(end - left + 1);
      zone.Settle(left, {});

      const auto held = [&](int64_t rung) {
        Tokens found;
        for (const Block& block : blocks) {
          for (const int64_t token : block.tokens) {
            if (token < left && (rung < 0 || block.rung == rung)) found.push_back(token);
          }
        }
        std::ranges::sort(found);
        return found;
      };
      while (std::ssize(held(-1)) > config.tokens) {
        int64_t rung = 0;
        while (static_cast<double>(held(rung).size()) <= static_cast<double>(config.tokens) / config.rungs) ++rung;
        const auto oldest = std::ranges::find_if(blocks, [&](const Block& block) { return block.rung == rung; });
        const int64_t share = int64_t{config.share} << (rung + 1);
        const auto rounded_up = static_cast<size_t>((oldest->length + share - 1) / share);
        if (++oldest->rung == config.rungs) {
          blocks.erase(oldest);
        } else if (oldest->tokens.size() > rounded_up) {
          oldest->tokens.resize(rounded_up);
        }
      }
      ASSERT_EQ(zone.Held(), held(-1)) << "seed " << seed << " step " << step;
      ASSERT_LE(std::ssize(zone.Held()), config.tokens);
    }
    KeptZone again(config);
    ASSERT_TRUE(again.Open(zone.Save(), In(0, left, end))) << seed;
    EXPECT_EQ(again.Save(), zone.Save());
  }
}

TEST(KeptZoneTest, AFixedZoneSpansAHundredThousandTokens) {
  KeptZone zone({.tokens = 3456});
  int64_t end = 0;
  for (int block = 0; block < 1000; ++block, end += 512) {
    Tokens tokens;
    for (int64_t i = 0; i < 64; ++i) tokens.push_back(end + 8 * i);
    zone.Choose({end, end + 512}, tokens);
    zone.Settle(end + 512, {});
  }
  EXPECT_GE(end - zone.Held().front(), 100'000);
  EXPECT_GE(std::ssize(zone.Held()), 3456 - 64);
}

TEST(KeptZoneTest, AdoptsWhatFitsAndNothingElse) {
  const KeptConfig config{.tokens = 16, .share = 2, .rungs = 2};
  const ZoneRows state{{20}, {0, 12, 1, 9, 4}, {12, 24, 0, 22, 13}};
  KeptZone zone(config);
  ASSERT_TRUE(zone.Open(state, In(4, 20, 40)));
  EXPECT_EQ(zone.Save(), state);
  EXPECT_EQ(zone.Held(), (Tokens{4, 9, 13})) << "22 is in rolling still";
  ASSERT_TRUE(zone.Open(state, In(4, 23, 40)));
  EXPECT_EQ(zone.Held(), (Tokens{4, 9, 13})) << "nobody kept the keys of 22, which left unseen";
  KeptZone off(KeptConfig{});
  ASSERT_TRUE(off.Open(state, In(4, 20, 40)));
  EXPECT_TRUE(off.Held().empty());
  const auto refuses = [&](auto change) {
    ZoneRows changed = state;
    change(changed);
    EXPECT_FALSE(zone.Open(changed, In(4, 20, 40)));
  };
  refuses([](ZoneRows& s) { s[0] = {21}; });
  refuses([](ZoneRows& s) { s[1] = {0, 12, 1, 3}; });
  refuses([](ZoneRows& s) { s[1] = {0, 12, 1, 12}; });
  refuses([](ZoneRows& s) { s[1] = {0, 12, 1, 9, 9}; });
  refuses([](ZoneRows& s) { s[1] = {0, 12, 1}; });
  refuses([](ZoneRows& s) { s[1][2] = 2; });
  refuses([](ZoneRows& s) { s[1][2] = -1; });
  refuses([](ZoneRows& s) { s[2][0] = 11; });
  refuses([](ZoneRows& s) { s[2][1] = 41; });
  refuses([](ZoneRows& s) { s[2] = {24, 24, 0, 24}; });
  refuses([](ZoneRows& s) { s[0] = {}; });
  refuses([](ZoneRows& s) { s[0] = {20, 20}; });
  refuses([](ZoneRows& s) { s = {}; });
}

// --- as the Memory OS asks

MemoryOsConfig Keeping() {
  MemoryOsConfig config;
  config.residency = {.frame_tokens = 140,
                      .sink_tokens = 4,
                      .recalled_tokens = 20,
                      .rolling_tokens = 40,
                      .evict_tokens = 8,
                      .kept = {.tokens = 16, .share = 4, .rungs = 2}};
  config.segmenter.block_tokens = 16;
  config.recall.prompt_rolling_tokens = 1000;
  return config;
}

TEST(KeptZoneTest, TheMemoryOsAsksOnceTheArchiveHasTheBlock) {
  MemoryOs os(Keeping());
  const std::vector<Action> actions = os.Observe(60, Origin::kRead);
  ASSERT_EQ(actions.size(), 7U) << "three blocks, then what is over leaves";
  for (size_t i = 0; i < 6; i += 2) {
    const auto& archive = std::get<ArchiveAction>(actions[i]);
    const auto& trim = std::get<TrimAction>(actions[i + 1]);
    EXPECT_EQ(trim.block, archive.span);
    EXPECT_EQ(trim.tokens, 4);
    EXPECT_EQ(trim.from, (std::vector<TokenSpan>{{std::max<int64_t>(4, trim.block.begin), trim.block.end}}));
  }
  EXPECT_EQ(std::get<EvictAction>(actions[6]).tokens, 16);
  EXPECT_EQ(std::get<EvictAction>(actions[6]).delta, 4 + 16 + 20 - 20) << "behind the kept zone and the recalled one";
  EXPECT_DEATH(os.Observe(1, Origin::kRead), "CHECK failed");
  EXPECT_DEATH(os.Choose(Tokens{3}), "CHECK failed") << "a sink";
  os.Choose(Tokens{9, 5});
  os.Choose(Tokens{16, 20, 17});
  EXPECT_TRUE(KeptOf(os).Held().empty()) << "one is not answered";
  os.Choose(Tokens{});
  EXPECT_EQ(KeptOf(os).Held(), (Tokens{5, 9, 16, 17}));
  EXPECT_EQ(os.frame().PositionOf("kept"), 4);
  EXPECT_EQ(os.choice_due(), nullptr);
  EXPECT_DEATH(os.Choose(Tokens{}), "CHECK failed");
}

TEST(KeptZoneTest, APageComesBackWholeAndHidesWhatIsKeptOfIt) {
  MemoryOs os(Keeping());
  os.Observe(60, Origin::kRead);
  os.Choose(Tokens{9, 5});
  os.Choose(Tokens{16, 20, 17});
  os.Choose(Tokens{});
  const std::vector<PageRef> pages{{1, 0, 0, {0, 8}, 4}, {2, 0, 0, {16, 24}, 0}, {9, 0, 7, {8, 16}, 0}};
  const std::vector<Placement> placements = Recall(os, pages);
  ASSERT_EQ(placements.size(), 3U);
  EXPECT_EQ(placements[0].tokens, 4) << "no sinks";
  EXPECT_EQ(placements[1].tokens, 4) << "[16, 20) left; the rest is in rolling";
  EXPECT_EQ(KeptOf(os).Shown(), (Tokens{9})) << "token 9 of another stream hides nothing here";
  EXPECT_EQ(KeptOf(os).Held(), (Tokens{5, 9, 16, 17}));
  os.ClearRecalled();
  EXPECT_EQ(KeptOf(os).Shown(), KeptOf(os).Held());
}

TEST(KeptZoneTest, ABlockThatIsFedAgainIsChosenFromAgain) {
  std::vector<PageRef> pages;
  for (int64_t begin = 0; begin < 64; begin += 8) {
    pages.push_back({1 + begin / 16, static_cast<int32_t>(begin / 8 % 2), 0, {begin, begin + 8}, begin == 0 ? 4 : 0});
  }
  MemoryOs os(Keeping());
  os.Resume({.stream_end = 40, .pages = pages, .rolling_from = 4, .archived_until = 64});
  EXPECT_EQ(os.open_from(), 32) << "of the block that was open then";
  const std::vector<Action> actions = os.Observe(10, Origin::kRead);
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(std::get<TrimAction>(actions[0]).block, (TokenSpan{32, 48}));
  os.Choose(Tokens{40, 33});
  EXPECT_EQ(os.open_from(), 48);
  const std::vector<Action> rest = os.Observe(14, Origin::kRead);
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(std::get<TrimAction>(rest[0]).block, (TokenSpan{48, 64}));
  os.Choose(Tokens{50});
  EXPECT_EQ(os.open_from(), 64);
  EXPECT_TRUE(KeptOf(os).Held().empty()) << "rolling begins at 24";
}

TEST(KeptZoneTest, OfForgottenTextNothingIsKept) {
  const SavedZones saved{{"kept", {{20}, {0, 16, 0, 5, 9}}}};
  const std::vector<PageRef> all{{1, 0, 0, {0, 16}, 4}, {2, 0, 0, {16, 60}, 0}};
  MemoryOs os(Keeping());
  os.Resume({.stream_end = 60, .pages = all, .rolling_from = 20, .zones = saved});
  EXPECT_EQ(KeptOf(os).Held(), (Tokens{5, 9}));
  os.Resume({.stream_end = 60, .pages = {{2, 0, 0, {16, 60}, 0}}, .rolling_from = 20, .zones = saved});
  EXPECT_TRUE(KeptOf(os).Held().empty());
}

}  // namespace
}  // namespace everlong::os
