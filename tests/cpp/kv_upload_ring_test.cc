// Tables through a ring of pinned RAM: the bytes of each, whatever comes after it, and who waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "everlong/kv/upload_ring.h"
#include "kv_recording_runtime.h"

namespace everlong::kv {
namespace {

using recording::RecordingRuntime;

class UploadRingTest : public testing::Test {
 protected:
  // Of `count` bytes of one value, to a place of its own.
  Status Upload(UploadRing& ring, int64_t count, void* stream = nullptr) {
    const auto value = static_cast<std::byte>(++uploads_ % 251);
    expected_.emplace_back(static_cast<size_t>(count), value);
    device_.push_back(std::make_unique<std::vector<std::byte>>(static_cast<size_t>(count)));
    std::vector<std::byte> table = expected_.back();
    const Status status = ring.Upload(stream, device_.back()->data(), table);
    std::ranges::fill(table, std::byte{0xFF});  // it may change now
    return status;
  }
  void ExpectAllThere() {
    runtime_->PassAll();
    for (size_t i = 0; i < expected_.size(); ++i) EXPECT_EQ(*device_[i], expected_[i]) << i;
  }
  [[nodiscard]] std::unique_ptr<UploadRing> Ring(int64_t bytes) const {
    return UploadRing::Make(runtime_, bytes).value();
  }
  [[nodiscard]] RecordingRuntime& runtime() const { return *runtime_; }

 private:
  std::shared_ptr<RecordingRuntime> runtime_ = std::make_shared<RecordingRuntime>();
  int64_t uploads_ = 0;
  std::vector<std::vector<std::byte>> expected_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> device_;
};

TEST_F(UploadRingTest, NobodyWaitsWhileThereIsRoom) {
  const auto ring = Ring(4096);
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(Upload(*ring, 256).ok());
  ASSERT_TRUE(Upload(*ring, 0).ok());
  EXPECT_EQ(runtime().waits, 0);
  EXPECT_EQ(runtime().synchronized, 0);
  ExpectAllThere();
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(Upload(*ring, 200).ok());
  EXPECT_EQ(runtime().waits, 0) << "what has passed gives its room back";
  ExpectAllThere();
}

TEST_F(UploadRingTest, AFullRingWaitsForItsOldest) {
  const auto ring = Ring(1024);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Upload(*ring, 256).ok());
  EXPECT_EQ(runtime().waits, 0);
  ASSERT_TRUE(Upload(*ring, 1).ok());
  EXPECT_EQ(runtime().waits, 1);
  EXPECT_EQ(runtime().events(), 4U) << "the others are still under way";
  ExpectAllThere();
}

TEST_F(UploadRingTest, EveryTableArrivesWhatever) {
  for (const int64_t bytes : {1, 256, 1000, 4096}) {
    const auto ring = Ring(bytes);
    std::mt19937 random(static_cast<uint32_t>(bytes));
    int streams[2] = {};
    for (int i = 0; i < 500; ++i) {
      if (random() % 8 == 0) runtime().PassAll();
      ASSERT_TRUE(Upload(*ring, 1 + static_cast<int64_t>(random()) % bytes, &streams[random() % 2]).ok());
    }
  }
  EXPECT_EQ(runtime().events(), 0U) << "a ring ends after its copies";
  ExpectAllThere();
}

TEST_F(UploadRingTest, WhatFailsTakesNoRoom) {
  const auto ring = Ring(256);
  runtime().copies_left = 0;
  EXPECT_EQ(Upload(*ring, 256).message(), "no copy");
  runtime().copies_left = 100;
  runtime().records_left = 0;
  EXPECT_EQ(Upload(*ring, 256).message(), "no event");
  EXPECT_EQ(runtime().synchronized, 1) << "its copy may have begun";
  runtime().records_left = 100;
  EXPECT_TRUE(Upload(*ring, 256).ok());
  EXPECT_EQ(runtime().waits, 0);
}

}  // namespace
}  // namespace everlong::kv
