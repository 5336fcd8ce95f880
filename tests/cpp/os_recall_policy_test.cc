#include <gtest/gtest.h>

#include "everlong/os/recall_policy.h"

namespace everlong::os {
namespace {

TEST(RecallPolicyTest, RecentIsDueEverySoManyTokens) {
  RecallPolicy policy({.prompt = false, .recent = true, .recent_every = 4, .recent_blocks = 3});
  int due = 0;
  for (int i = 1; i <= 12; ++i) {
    const bool now = policy.Count(1);
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

TEST(RecallPolicyTest, Validates) {
  EXPECT_TRUE(Validate(RecallPolicyConfig{}).ok());
  EXPECT_EQ(Validate(RecallPolicyConfig{.recent_every = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Validate(RecallPolicyConfig{.recent_blocks = 0}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace everlong::os
