#include <gtest/gtest.h>

#include <initializer_list>
#include <random>
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

TEST(SegmenterTest, RefusesEmptyBlocks) {
  EXPECT_TRUE(Validate(SegmenterConfig{.block_tokens = 1}).ok());
  EXPECT_EQ(Validate(SegmenterConfig{.block_tokens = 0}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::os
