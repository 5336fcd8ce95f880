#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

#include "everlong/os/segmenter.h"

namespace everlong::os {
namespace {

std::vector<TokenSpan> Spans(const std::vector<ClosedBlock>& blocks) {
  std::vector<TokenSpan> spans;
  for (const ClosedBlock& block : blocks) spans.push_back(block.span);
  return spans;
}

TEST(SegmenterTest, CutsOnlyCompleteBlocks) {
  Segmenter segmenter({.block_tokens = 4});
  EXPECT_TRUE(segmenter.Cut(0, 3).empty());
  EXPECT_EQ(Spans(segmenter.Cut(0, 4)), (std::vector<TokenSpan>{{0, 4}}));
  EXPECT_EQ(Spans(segmenter.Cut(2, 11)), (std::vector<TokenSpan>{{2, 6}, {6, 10}}));
}

TEST(SegmenterTest, CutAllClosesTheRest) {
  Segmenter segmenter({.block_tokens = 4});
  EXPECT_TRUE(segmenter.CutAll(7, 7).empty());
  EXPECT_EQ(Spans(segmenter.CutAll(0, 3)), (std::vector<TokenSpan>{{0, 3}}));
  EXPECT_EQ(Spans(segmenter.CutAll(2, 10)), (std::vector<TokenSpan>{{2, 6}, {6, 10}}));
  EXPECT_EQ(Spans(segmenter.CutAll(2, 11)), (std::vector<TokenSpan>{{2, 6}, {6, 10}, {10, 11}}));
}

// L_max 80, L_min 10, cooldown 15; soft ends count in the last 10 tokens of a block.
constexpr SegmenterConfig kRules{.block_tokens = 80, .least_tokens = 10, .cooldown_tokens = 15};

std::vector<TokenSpan> CutBehind(std::initializer_list<Boundary> boundaries, int64_t stream_end) {
  Segmenter segmenter(kRules);
  for (const Boundary& boundary : boundaries) segmenter.Note(boundary);
  return Spans(segmenter.Cut(0, stream_end));
}

TEST(SegmenterTest, NearTheLimitABlockEndsWhereAParagraphOrASentenceDoes) {
  using enum BoundaryKind;
  EXPECT_EQ(CutBehind({{60, kParagraph}, {72, kSentence}, {77, kSentence}}, 85), (std::vector<TokenSpan>{{0, 77}}));
  EXPECT_EQ(CutBehind({{72, kParagraph}, {77, kSentence}}, 85), (std::vector<TokenSpan>{{0, 72}}));
  EXPECT_EQ(CutBehind({{60, kParagraph}, {69, kSentence}, {81, kParagraph}}, 85), (std::vector<TokenSpan>{{0, 80}}));
  EXPECT_TRUE(CutBehind({{72, kParagraph}}, 79).empty());  // a better end may come
}

TEST(SegmenterTest, ATurnEndsABlockThatIsLongEnough) {
  using enum BoundaryKind;
  EXPECT_EQ(CutBehind({{9, kTurn}, {10, kTurn}, {15, kTurn}, {40, kTurn}}, 41),
            (std::vector<TokenSpan>{{0, 10}, {10, 40}}));
}

TEST(SegmenterTest, ASignalThatComesTooSoonSilencesTheNext) {
  using enum BoundaryKind;
  EXPECT_EQ(CutBehind({{12, kSignal}}, 20), (std::vector<TokenSpan>{{0, 12}}));
  // 5 is too soon; 19 is within the cooldown; 20 is not.
  EXPECT_TRUE(CutBehind({{5, kSignal}, {19, kSignal}}, 30).empty());
  EXPECT_EQ(CutBehind({{5, kSignal}, {19, kSignal}, {20, kSignal}}, 30), (std::vector<TokenSpan>{{0, 20}}));
}

TEST(SegmenterTest, SignalsThatArePassedOverAreToldOnce) {
  using enum BoundaryKind;
  Segmenter segmenter(kRules);
  const auto hear = [&segmenter](int64_t position) {
    segmenter.Note({position, kSignal});
    for (int64_t end = position; end < position + 3; ++end) EXPECT_TRUE(segmenter.Cut(0, end).empty()) << end;
    return segmenter.TakePassedOver();
  };
  EXPECT_EQ(hear(5), std::vector<int64_t>{5}) << "too soon";
  EXPECT_EQ(hear(19), std::vector<int64_t>{19}) << "within the cooldown";
  segmenter.Note({22, kSignal});
  EXPECT_EQ(segmenter.Cut(0, 22), (std::vector<ClosedBlock>{{{0, 22}, BlockEnd::kSignal}}));
  EXPECT_TRUE(segmenter.TakePassedOver().empty());
}

TEST(SegmenterTest, ATurnASignalAndTheEndOfATextEndATopic) {
  using enum BoundaryKind;
  Segmenter segmenter(kRules);
  for (const Boundary& boundary : {Boundary{30, kTurn}, {105, kParagraph}, {125, kSignal}, {160, kSentence}}) {
    segmenter.Note(boundary);
  }
  const std::vector<ClosedBlock> blocks = segmenter.Cut(0, 130);
  EXPECT_EQ(blocks,
            (std::vector<ClosedBlock>{
                {{0, 30}, BlockEnd::kTurn}, {{30, 105}, BlockEnd::kParagraph}, {{105, 125}, BlockEnd::kSignal}}));
  EXPECT_TRUE(blocks[0].EndsTopic());
  EXPECT_FALSE(blocks[1].EndsTopic());
  EXPECT_TRUE(blocks[2].EndsTopic());
  EXPECT_EQ(segmenter.CutAll(125, 170), (std::vector<ClosedBlock>{{{125, 170}, BlockEnd::kText}}));
  Segmenter even({.block_tokens = 4});
  EXPECT_EQ(even.CutAll(0, 8), (std::vector<ClosedBlock>{{{0, 4}, BlockEnd::kLength}, {{4, 8}, BlockEnd::kText}}));
  EXPECT_EQ(even.CutAll(8, 9, BlockEnd::kQuestion), (std::vector<ClosedBlock>{{{8, 9}, BlockEnd::kQuestion}}));
  EXPECT_TRUE(even.CutAll(8, 9, BlockEnd::kQuestion)[0].EndsTopic());
}

TEST(SegmenterTest, BlocksDoNotDependOnHowTheStreamIsFed) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    std::vector<Boundary> boundaries;
    for (int64_t at = 0; at < 900; at += 1 + static_cast<int64_t>(random() % 12)) {
      boundaries.push_back({at, static_cast<BoundaryKind>(random() % 40 < 36 ? random() % 2 : random() % 4)});
    }
    const auto cut_by = [&](int64_t chunk) {
      Segmenter segmenter(kRules);
      std::vector<TokenSpan> blocks;
      size_t next = 0;
      for (int64_t end = chunk; end <= 900; end += chunk) {
        for (; next < boundaries.size() && boundaries[next].position <= end; ++next) segmenter.Note(boundaries[next]);
        for (const TokenSpan& block : Spans(segmenter.Cut(blocks.empty() ? 0 : blocks.back().end, end))) {
          blocks.push_back(block);
        }
      }
      return blocks;
    };
    const std::vector<TokenSpan> whole = cut_by(900);
    EXPECT_EQ(cut_by(1), whole) << seed;
    EXPECT_EQ(cut_by(60), whole) << seed;
    for (const TokenSpan& block : whole) EXPECT_LE(block.size(), kRules.block_tokens);
  }
}

// As kRules, and a trigger that reads 4 tokens behind a place.
constexpr SegmenterConfig kTrigger{
    .block_tokens = 80, .least_tokens = 10, .cooldown_tokens = 15, .topic_threshold = 0.5F, .topic_lookahead = 4};

// Probabilities of places; all others have none. Fed in chunks, as boundaries are.
std::vector<ClosedBlock> CutByTrigger(const std::vector<std::pair<int64_t, float>>& places,
                                      const std::vector<Boundary>& boundaries, int64_t stream_end, int64_t chunk) {
  Segmenter segmenter(kTrigger);
  std::vector<ClosedBlock> blocks;
  size_t next = 0;
  size_t next_place = 0;
  for (int64_t begin = 0; begin < stream_end;) {
    const int64_t end = std::min(begin + chunk, stream_end);
    for (; next < boundaries.size() && boundaries[next].position <= end; ++next) segmenter.Note(boundaries[next]);
    for (int64_t read = begin + 1; read <= end; ++read) {
      const int64_t place = read - kTrigger.topic_lookahead;
      while (next_place < places.size() && places[next_place].first < place) ++next_place;
      const bool said = next_place < places.size() && places[next_place].first == place;
      segmenter.NoteProbability(read, said ? places[next_place].second : 0);
    }
    for (const ClosedBlock& block : segmenter.Cut(blocks.empty() ? 0 : blocks.back().span.end, end)) {
      blocks.push_back(block);
    }
    begin = end;
  }
  return blocks;
}

TEST(SegmenterTest, ATopicEndsAtTheMostProbableOfThePlacesNearby) {
  using Blocks = std::vector<ClosedBlock>;
  // 30 is the first that reaches the threshold; 39 is the last that is compared with it, and 40 is not.
  EXPECT_EQ(CutByTrigger({{20, 0.49F}, {30, 0.5F}, {35, 0.7F}, {39, 0.7F}, {40, 0.9F}}, {}, 44, 44),
            (Blocks{{{0, 35}, BlockEnd::kTopic}}));
  EXPECT_TRUE(CutByTrigger({{30, 0.5F}, {35, 0.7F}}, {}, 42, 42).empty()) << "39 is known once 43 are read";
  EXPECT_EQ(CutByTrigger({{30, 0.5F}, {35, 0.7F}}, {}, 43, 43), (Blocks{{{0, 35}, BlockEnd::kTopic}}));
  const Blocks alone = CutByTrigger({{35, 0.7F}}, {}, 48, 48);
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_TRUE(alone.front().EndsTopic());
}

TEST(SegmenterTest, ATopicThatEndsTooSoonSilencesTheTrigger) {
  using Blocks = std::vector<ClosedBlock>;
  EXPECT_EQ(CutByTrigger({{9, 0.9F}, {23, 0.9F}, {30, 0.6F}}, {}, 60, 60), (Blocks{{{0, 30}, BlockEnd::kTopic}}));
  EXPECT_EQ(CutByTrigger({{9, 0.9F}, {24, 0.9F}}, {}, 60, 60), (Blocks{{{0, 24}, BlockEnd::kTopic}}));
  // A signal at 5 silences signals, and the trigger is one.
  EXPECT_EQ(CutByTrigger({{12, 0.9F}}, {{5, BoundaryKind::kSignal}}, 60, 60), Blocks{});
}

TEST(SegmenterTest, WhatIsSaidPlainlyComesBeforeTheTrigger) {
  using enum BoundaryKind;
  using Blocks = std::vector<ClosedBlock>;
  const std::vector<std::pair<int64_t, float>> places{{30, 0.9F}};
  EXPECT_EQ(CutByTrigger(places, {{43, kTurn}}, 60, 60), (Blocks{{{0, 43}, BlockEnd::kTurn}}));
  EXPECT_EQ(CutByTrigger(places, {{44, kTurn}}, 60, 60),
            (Blocks{{{0, 30}, BlockEnd::kTopic}, {{30, 44}, BlockEnd::kTurn}}));
  // At L_max no more is known than what lies 4 tokens before.
  EXPECT_EQ(CutByTrigger({{76, 0.9F}}, {}, 80, 80), (Blocks{{{0, 76}, BlockEnd::kTopic}}));
  EXPECT_EQ(CutByTrigger({{77, 0.9F}}, {{75, kSentence}}, 80, 80), (Blocks{{{0, 75}, BlockEnd::kSentence}}));
}

TEST(SegmenterTest, TopicsDoNotDependOnHowTheStreamIsFed) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<Boundary> boundaries;
    for (int64_t at = 1; at < 900; at += 1 + static_cast<int64_t>(random() % 12)) {
      boundaries.push_back({at, static_cast<BoundaryKind>(random() % 40 < 38 ? random() % 2 : random() % 4)});
    }
    std::vector<std::pair<int64_t, float>> places;
    for (int64_t at = 0; at < 900; at += 1 + static_cast<int64_t>(random() % 9)) {
      places.emplace_back(at, static_cast<float>(random() % 64) / 100);
    }
    const std::vector<ClosedBlock> whole = CutByTrigger(places, boundaries, 900, 900);
    for (const int64_t chunk : {1, 7, 64}) EXPECT_EQ(CutByTrigger(places, boundaries, 900, chunk), whole) << seed;
    int64_t begin = 0;
    for (const ClosedBlock& block : whole) {
      EXPECT_EQ(block.span.begin, begin);
      begin = block.span.end;
      EXPECT_LE(block.span.size(), kTrigger.block_tokens);
      if (block.ended_by != BlockEnd::kTopic) continue;
      EXPECT_GE(block.span.size(), kTrigger.least_tokens);
      const auto place = std::ranges::find(places, block.span.end, &std::pair<int64_t, float>::first);
      ASSERT_NE(place, places.end());
      EXPECT_GE(place->second, kTrigger.topic_threshold);
      int64_t silent_until = 0;
      for (const auto& [at, probability] : places) {
        const bool too_soon = at > block.span.begin && at - block.span.begin < kTrigger.least_tokens;
        if (too_soon && probability >= kTrigger.topic_threshold && at >= silent_until) {
          silent_until = at + kTrigger.cooldown_tokens;
        }
      }
      EXPECT_GE(block.span.end, silent_until);
    }
    EXPECT_GT(whole.size(), 900U / 80);
  }
}

TEST(SegmenterTest, RefusesEmptyBlocks) {
  EXPECT_FALSE(Validate(SegmenterConfig{.topic_threshold = std::nanf("")}).ok());
  EXPECT_FALSE(Validate(SegmenterConfig{.topic_lookahead = -1}).ok());
  EXPECT_TRUE(Validate(SegmenterConfig{.block_tokens = 1}).ok());
  EXPECT_EQ(Validate(SegmenterConfig{.block_tokens = 0}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::os
