#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
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
  EXPECT_FALSE(policy.Waiting());
  policy.Restored();
  EXPECT_FALSE(policy.Count(2));
  EXPECT_EQ(policy.Waiting(), RecallTrigger::kPeriodic);
  EXPECT_FALSE(policy.Signal());
  EXPECT_EQ(policy.Waiting(), RecallTrigger::kSignal);
  for (int i = 3; i < 5; ++i) EXPECT_FALSE(policy.Count(1)) << i;
  EXPECT_EQ(policy.Count(1), RecallTrigger::kSignal);
  EXPECT_FALSE(policy.Waiting()) << "periodic is due, not put off";
  EXPECT_EQ(policy.Count(1), RecallTrigger::kPeriodic);
  EXPECT_EQ(policy.Signal(), RecallTrigger::kSignal);
}

TEST(RecallPolicyTest, TombstonesWakeWhereAskedForAndNothingIsProtected) {
  EXPECT_FALSE(RecallPolicy({.prompt = true, .periodic = true, .signal = true}).Wake());
  RecallPolicy policy({.tombstone = true, .protect_tokens = 3});
  EXPECT_EQ(policy.Wake(), RecallTrigger::kTombstone);
  EXPECT_EQ(policy.Wake(), RecallTrigger::kTombstone) << "nothing is counted";
  policy.Restored();
  EXPECT_FALSE(policy.Wake());
  EXPECT_FALSE(policy.Count(2));
  EXPECT_FALSE(policy.Wake());
  EXPECT_FALSE(policy.Waiting()) << "it is not put off";
  EXPECT_FALSE(policy.Count(1));
  EXPECT_EQ(policy.Wake(), RecallTrigger::kTombstone);
}

TEST(RecallPolicyTest, SignalsAreHeededWhereAskedFor) {
  RecallPolicy policy({.signal = false});
  EXPECT_FALSE(policy.Signal());
  EXPECT_FALSE(policy.Count(1000));
}

TEST(RecallPolicyTest, AnotherPolicyGoesOnWhereOneStopped) {
  const RecallPolicyConfig config{
      .recent = true, .periodic = true, .signal = true, .recent_every = 11, .periodic_every = 7, .protect_tokens = 4};
  // A signal waits at the third token, a recall comes back at the second and at the tenth.
  const auto step = [](RecallPolicy& policy, int i) {
    if (i == 2 || i == 10) policy.Restored();
    if (i == 3) {
      EXPECT_FALSE(policy.Signal());
    }
    return policy.Count(1);
  };
  for (int stop = 1; stop < 25; ++stop) {
    RecallPolicy policy(config);
    for (int i = 1; i <= stop; ++i) step(policy, i);
    RecallPolicy next(config);
    EXPECT_TRUE(next.Adopt(policy.counts()));
    EXPECT_EQ(next.counts(), policy.counts());
    for (int i = stop + 1; i < 40; ++i) EXPECT_EQ(step(next, i), step(policy, i)) << stop << ", " << i;
  }
}

TEST(RecallPolicyTest, CountsThatNoPolicyHasDoNotBreakOne) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const RecallPolicyConfig config{
      .recent = true, .periodic = true, .signal = true, .recent_every = 3, .periodic_every = 2, .protect_tokens = 4};
  RecallPolicy policy(config);
  EXPECT_FALSE(policy.Adopt({-1, 0, std::nullopt, true}));
  EXPECT_FALSE(policy.Adopt({0, -kHuge, std::nullopt, true}));
  EXPECT_FALSE(policy.Adopt({0, 0, -kHuge, true}));
  EXPECT_EQ(policy.counts(), RecallCounts{});

  ASSERT_TRUE(policy.Adopt({kHuge, kHuge, kHuge, true}));
  using enum RecallTrigger;
  EXPECT_EQ(policy.Count(1), kSignal);
  EXPECT_EQ(policy.Count(1), kRecent);
  EXPECT_EQ(policy.Count(1), kPeriodic);
  EXPECT_EQ(policy.Count(1), std::nullopt);

  RecallPolicy off({});
  ASSERT_TRUE(off.Adopt({5, 5, std::nullopt, true}));
  EXPECT_EQ(off.counts(), RecallCounts{}) << "what is off does not count";
  off.Count(1000);
  EXPECT_EQ(off.counts(), RecallCounts{});
}

TEST(RecallPolicyTest, Validates) {
  EXPECT_TRUE(Validate(RecallPolicyConfig{}).ok());
  EXPECT_EQ(Validate(RecallPolicyConfig{.recent_every = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.recent_blocks = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.periodic_every = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.protect_tokens = -1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.tombstone_threshold = std::numeric_limits<float>::quiet_NaN()}).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::os
