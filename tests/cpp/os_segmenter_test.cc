#include <gtest/gtest.h>

#include "everlong/os/segmenter.h"

namespace everlong::os {
namespace {

TEST(SegmenterTest, CutsOnlyCompleteBlocks) {
  const Segmenter segmenter({.block_tokens = 4});
  EXPECT_TRUE(segmenter.Cut(0, 3).empty());
  EXPECT_EQ(segmenter.Cut(0, 4), (std::vector<TokenSpan>{{0, 4}}));
  EXPECT_EQ(segmenter.Cut(2, 11), (std::vector<TokenSpan>{{2, 6}, {6, 10}}));
}

TEST(SegmenterTest, CutAllClosesTheRest) {
  const Segmenter segmenter({.block_tokens = 4});
  EXPECT_TRUE(segmenter.CutAll(7, 7).empty());
  EXPECT_EQ(segmenter.CutAll(0, 3), (std::vector<TokenSpan>{{0, 3}}));
  EXPECT_EQ(segmenter.CutAll(2, 10), (std::vector<TokenSpan>{{2, 6}, {6, 10}}));
  EXPECT_EQ(segmenter.CutAll(2, 11), (std::vector<TokenSpan>{{2, 6}, {6, 10}, {10, 11}}));
}

TEST(SegmenterTest, RefusesEmptyBlocks) {
  EXPECT_TRUE(Validate(SegmenterConfig{.block_tokens = 1}).ok());
  EXPECT_EQ(Validate(SegmenterConfig{.block_tokens = 0}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::os
