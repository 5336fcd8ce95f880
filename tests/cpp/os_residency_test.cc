#include <gtest/gtest.h>

#include "everlong/os/residency.h"

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
  EXPECT_EQ(residency.Evict(8), 12) << "token 12 goes from position 12 to 24";
  EXPECT_EQ(residency.rolling(), (TokenSpan{12, 52}));
  EXPECT_EQ(residency.rolling_position(), 24);
  EXPECT_EQ(residency.NextPosition(), 64);
  residency.Append(9);
  EXPECT_EQ(residency.Evict(residency.Overflow()), -9) << "later evictions turn by minus what left";
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

TEST(ResidencyDeathTest, RefusesToLeaveItsBounds) {
  Residency residency(kConfig);
  EXPECT_DEATH(residency.Append(residency.Room() + 1), "CHECK failed");
  EXPECT_DEATH(residency.Evict(1), "CHECK failed");
  EXPECT_DEATH(residency.SetRecalled(1), "CHECK failed") << "the zone is not open yet";
  residency.Evict(0);
  residency.SetRecalled(20);
  EXPECT_DEATH(residency.SetRecalled(21), "CHECK failed");
}

}  // namespace
}  // namespace everlong::os
