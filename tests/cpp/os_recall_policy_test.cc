#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "everlong/os/recall_policy.h"

namespace everlong::os {
namespace {

TEST(RecallPolicyTest, RecentIsDueEverySoManyTokens) {
  RecallPolicy policy({.prompt = false, .recent = true, .recent_every = 4, .recent_blocks = 3});
  int due = 0;
  for (int i = 1; i <= 12; ++i) {
    const bool now = policy.Count(1).has_value();
    EXPECT_EQ(now, i % 4 == 0) << i;
    due += now ? 1 : 0;
  }
  EXPECT_EQ(due, 3);
}

TEST(RecallPolicyTest, ALongStepIsOneRecallAndCountsAnew) {
  RecallPolicy policy({.prompt = false, .recent = true, .recent_every = 4, .recent_blocks = 3});
  EXPECT_TRUE(policy.Count(11));
  EXPECT_FALSE(policy.Count(3));
  EXPECT_TRUE(policy.Count(1));
}

TEST(RecallPolicyTest, OffIsNeverDue) {
  RecallPolicy policy({.prompt = true, .recent = false, .recent_every = 1, .recent_blocks = 1});
  EXPECT_FALSE(policy.Count(100));
}

TEST(RecallPolicyTest, PeriodicIsDueEverySoManyTokensAndAfterRecent) {
  RecallPolicy policy(
      {.prompt = false, .recent = true, .periodic = true, .recent_every = 6, .periodic_every = 3, .protect_tokens = 0});
  std::vector<std::optional<RecallTrigger>> due;
  for (int i = 0; i < 7; ++i) due.push_back(policy.Count(1));
  using enum RecallTrigger;
  EXPECT_EQ(due, (std::vector<std::optional<RecallTrigger>>{{}, {}, kPeriodic, {}, {}, kRecent, kPeriodic}));
}

TEST(RecallPolicyTest, WhatCameBackIsProtected) {
  RecallPolicy policy({.periodic = true, .signal = true, .periodic_every = 2, .protect_tokens = 5});
  policy.Restored();
  EXPECT_FALSE(policy.Signal());
  for (int i = 1; i < 5; ++i) EXPECT_FALSE(policy.Count(1)) << i;
  EXPECT_EQ(policy.Count(1), RecallTrigger::kSignal);
  EXPECT_EQ(policy.Count(1), RecallTrigger::kPeriodic);
  EXPECT_EQ(policy.Signal(), RecallTrigger::kSignal);
}

TEST(RecallPolicyTest, SignalsAreHeededWhereAskedFor) {
  RecallPolicy policy({.signal = false});
  EXPECT_FALSE(policy.Signal());
  EXPECT_FALSE(policy.Count(1000));
}

TEST(RecallPolicyTest, Validates) {
  EXPECT_TRUE(Validate(RecallPolicyConfig{}).ok());
  EXPECT_EQ(Validate(RecallPolicyConfig{.recent_every = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.recent_blocks = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.periodic_every = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.protect_tokens = -1}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::os
