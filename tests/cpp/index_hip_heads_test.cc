// Searches of HeadsIndex on a device: the kernels' threads, run on the host, against the definition; and what happens
// where the device has no room or fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../cpp/index/heads_index.h"
#include "base_temporary_folder.h"
#include "index_heads_case.h"
#include "index_hip_host.h"

namespace everlong::index {
namespace {

using hip::host::HostDevice;

constexpr int64_t kEnough = int64_t{64} << 20;

class HipHeadsTest : public testing::TestWithParam<KeyStorage> {
 protected:
  [[nodiscard]] HeadsOptions OnDevice(int64_t bytes = kEnough) const {
    return {kCoarseFrom, GetParam(), device_, bytes};
  }
  [[nodiscard]] HeadsOptions OnHost() const { return {kCoarseFrom, GetParam(), nullptr, 0}; }
  [[nodiscard]] HostDevice& device() const { return *device_; }

 private:
  std::shared_ptr<HostDevice> device_ = std::make_shared<HostDevice>();
};

INSTANTIATE_TEST_SUITE_P(Storages, HipHeadsTest, testing::ValuesIn(kKeyStorages),
                         [](const auto& parameter) { return std::string(NameOf(parameter.param)); });

// Every fifth page is not allowed, and every second has sinks, a few of them all their tokens.
void LeaveOut(Case& made, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t page = 0; page < made.pages.size(); ++page) {
    if (page % 2 == 0) made.sinks[page] = static_cast<int32_t>(random() % static_cast<uint32_t>(made.tokens[page] + 1));
    if (page % 5 == 4) made.filter.Set(static_cast<int32_t>(page), false);
  }
}

TEST_P(HipHeadsTest, MassIsTheDefinition) {
  uint32_t seed = 100;
  int64_t searches = 0;
  for (const auto& heads : {kOneHead, kGroupedHeads}) {
    for (const int32_t dim : {1, 3, 6, 13, 64, 128}) {
      for (const int32_t page_tokens : {1, 31, 32, 64, 70, 130}) {
        SCOPED_TRACE(testing::Message() << heads.size() << " heads, D " << dim << ", pages of " << page_tokens);
        Case made = MakeCase({.heads = heads, .dim = dim, .page_tokens = page_tokens, .question = 5}, ++seed);
        LeaveOut(made, seed);
        ExpectMass(made.Build(OnDevice()), made);
        EXPECT_EQ(device().scans, ++searches);
      }
    }
  }
}

TEST_P(HipHeadsTest, MassOfManyPagesAndALongQuestion) {
  Case made = MakeCase({.heads = kGroupedHeads, .dim = 16, .pages = 400, .page_tokens = 16, .question = 20}, 7);
  LeaveOut(made, 8);
  ExpectMass(made.Build(OnDevice()), made);
}

TEST_P(HipHeadsTest, MassOfSharpAttention) {
  const Case made = MakeCase({.heads = kGroupedHeads, .pages = 70, .question = 4, .sharpness = 30.0F}, 9);
  ExpectMass(made.Build(OnDevice()), made, 2e-4);
}

TEST_P(HipHeadsTest, ScoresMayLieFarApart) {
  // 2^200 is no float: the largest score of a row decides what counts, wherever it stands.
  Case made = MakeCase({.heads = kOneHead, .dim = 4, .pages = 130, .page_tokens = 40, .question = 2}, 22);
  made.q = {30, 0, 0, 0, 30, 0, 0, 0};
  made.pages[100][0] = 20;
  made.pages[120][0] = 19.75F;
  const HeadsIndex index = made.Build(OnDevice());
  ExpectMass(index, made);
  made.pages.resize(2);
  made.pages = {{100, 0, 0, 0}, {-100, 0, 0, 0}};
  made.tokens = {1, 1};
  made.sinks = {0, 0};
  made.q = {100, 0, 0, 0};
  made.weights = {1};
  made.filter = PageMask(2, true);
  const HeadsIndex two = made.Build(OnDevice());
  EXPECT_EQ(*Mass(two, made.q, made.weights, made.filter), (std::vector<float>{1, 0}));
}

TEST_P(HipHeadsTest, MassOfHugeAndTinyKeys) {
  for (const int exponent : {-95, -40, 60, 95}) {
    SCOPED_TRACE(exponent);
    const Case made = MakeScaledCase(exponent);
    ExpectMass(made.Build(OnDevice()), made);
  }
}

TEST_P(HipHeadsTest, FindsWhatTheHostDoes) {
  Case made = MakeCase({.heads = kGroupedHeads, .pages = 300, .question = 8, .sharpness = 2.0F}, 63);
  LeaveOut(made, 64);
  const auto on_host = Search(made.Build(OnHost()), made.q, made.weights, 64, made.filter);
  const HeadsIndex index = made.Build(OnDevice());
  const auto hits = Search(index, made.q, made.weights, 64, made.filter);
  ASSERT_EQ(hits->size(), on_host->size());
  for (size_t rank = 0; rank < hits->size(); ++rank) {
    EXPECT_EQ((*hits)[rank].page, (*on_host)[rank].page) << rank;
    EXPECT_NEAR((*hits)[rank].score, (*on_host)[rank].score, 2e-5 * (*on_host)[rank].score);
  }
  EXPECT_EQ(index.device_use().scans, 1);
  EXPECT_TRUE(index.TakeDeviceFailure().ok());
}

TEST_P(HipHeadsTest, ScoresEveryPageWhereTheHostWouldChoose) {
  const Case made = MakeCase({.heads = kOneHead, .pages = 300, .page_tokens = 8, .question = 2}, 65);
  HeadsOptions by_two_levels = OnDevice();
  by_two_levels.coarse_from = 100;
  const auto all = Search(made.Build(OnDevice()), made.q, made.weights, 300, made.filter);
  EXPECT_EQ(all->size(), 300U);
  const HeadsIndex index = made.Build(by_two_levels);
  const auto same = Search(index, made.q, made.weights, 300, made.filter);
  EXPECT_EQ(*same, *all);
  // The two levels are still there for the host.
  device().scans_left = 0;
  EXPECT_EQ(Search(index, made.q, made.weights, 300, made.filter)->size(), 64U);
}

TEST_P(HipHeadsTest, KeysGoThereOnceAsTheyCome) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 20, .pages = 60, .page_tokens = 50, .question = 3}, 66);
  HeadsIndex index(made.heads, made.dim, OnDevice());
  int64_t bytes = 0;
  for (size_t page = 0; page < made.pages.size(); ++page) {
    const int64_t before = device().uploaded;
    ASSERT_TRUE(index.Add(made.pages[page], made.tokens[page], made.sinks[page]).ok());
    bytes += index.PageBytes(made.tokens[page]);
    EXPECT_EQ(device().uploaded - before, index.PageBytes(made.tokens[page]));
    if (page % 13 != 0) continue;
    Case so_far = made;
    so_far.pages.resize(page + 1);
    so_far.tokens.resize(page + 1);
    so_far.sinks.resize(page + 1);
    so_far.filter = PageMask(static_cast<int32_t>(page + 1), true);
    ExpectMass(index, so_far);
  }
  EXPECT_GE(index.device_use().bytes, bytes);
  EXPECT_EQ(index.device_use().bytes, device().held());
  EXPECT_EQ(index.device_use().scans, 5);
}

TEST_P(HipHeadsTest, ForgottenKeysAreZerosThereAndTheirRoomIsUsedAgain) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 20, .pages = 60, .page_tokens = 32, .question = 3}, 68);
  HeadsIndex index = made.Build(OnDevice());
  const int64_t held = device().held();
  Case left = made;
  for (int32_t page = 0; page < 60; page += 3) {
    index.Forget(page);
    left.filter.Set(page, false);
  }
  ExpectMass(index, left);
  for (size_t page = 0; page < 60; page += 3) {
    ASSERT_TRUE(index.Add(made.pages[page], made.tokens[page], made.sinks[page]).ok());
    left.pages.push_back(made.pages[page]);
    left.tokens.push_back(made.tokens[page]);
    left.sinks.push_back(made.sinks[page]);
  }
  left.filter = PageMask(80, true);
  for (int32_t page = 0; page < 60; page += 3) left.filter.Set(page, false);
  ExpectMass(index, left);
  EXPECT_LE(device().held(), held + held / 4) << "what a search takes may have grown";
  EXPECT_EQ(index.device_use().scans, 2);
}

TEST_P(HipHeadsTest, WhatIsSavedComesBackThere) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 13, .pages = 40, .page_tokens = 70, .question = 4}, 67);
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "heads";
  std::vector<int32_t> every(40);
  std::iota(every.begin(), every.end(), 0);
  ASSERT_TRUE(made.Build(OnHost()).Save(file, every).ok());
  // Without every third page, as where blocks were forgotten.
  std::vector<uint8_t> kept(40, 1);
  Case left = made;
  left.pages.clear();
  left.tokens.clear();
  left.sinks.clear();
  for (size_t page = 0; page < 40; ++page) {
    kept[page] = page % 3 == 0 ? 0 : 1;
    if (kept[page] == 0) continue;
    left.pages.push_back(made.pages[page]);
    left.tokens.push_back(made.tokens[page]);
    left.sinks.push_back(made.sinks[page]);
  }
  left.filter = PageMask(static_cast<int32_t>(left.pages.size()), true);
  const auto loaded = LoadHeads(file, made.heads, made.dim, OrdinalsOf(kept), OnDevice());
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  ExpectMass(*loaded, left);
  EXPECT_EQ(device().scans, 1);
  EXPECT_EQ(loaded->options().device_bytes, kEnough);
  EXPECT_EQ(loaded->options().device.get(), &device());
}

TEST_P(HipHeadsTest, NothingToScoreAsksNothingOfTheDevice) {
  const Case made = MakeCase({.heads = kOneHead, .pages = 3, .question = 2}, 14);
  const HeadsIndex empty(kOneHead, 64, OnDevice());
  EXPECT_TRUE(Mass(empty, made.q, made.weights, made.filter)->empty());
  const HeadsIndex index = made.Build(OnDevice());
  const std::vector<float> zeros(3, 0.0F);
  EXPECT_EQ(*Mass(index, made.q, made.weights, PageMask(3, false)), zeros);
  EXPECT_EQ(*Mass(index, made.q, std::vector<float>(2, 0.0F), made.filter), zeros);
  EXPECT_EQ(*Mass(index, {}, {}, made.filter), zeros);
  std::vector<float> bad = made.q;
  bad[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Search(index, bad, made.weights, 1, made.filter).status().code(), StatusCode::kInvalidArgument);
  HeadsIndex headless({}, 64, OnDevice());
  ASSERT_TRUE(headless.Add({}, 64, 0).ok());
  EXPECT_EQ(*Mass(headless, {}, std::vector<float>{1.0F}, PageMask(1, true)), std::vector<float>{0.0F});
  EXPECT_EQ(headless.device_use().bytes, 0);
  EXPECT_EQ(device().scans, 0);
}

TEST_P(HipHeadsTest, LittleRoomTakesSeveralPasses) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 8, .pages = 50, .page_tokens = 64, .question = 40}, 70);
  const HeadsIndex roomy = made.Build(OnDevice());
  const auto expected = Mass(roomy, made.q, made.weights, made.filter);
  EXPECT_EQ(device().scans, 1);
  int64_t keys = 0;
  for (const int32_t tokens : made.tokens) keys += roomy.PageBytes(tokens);
  bool in_passes = false;
  for (int64_t bytes = keys; bytes < 4 * keys; bytes += keys / 4) {
    device().scans = 0;
    const HeadsIndex tight = made.Build(OnDevice(bytes));
    const auto mass = Mass(tight, made.q, made.weights, made.filter);
    for (size_t page = 0; page < mass->size(); ++page) {
      EXPECT_NEAR((*mass)[page], (*expected)[page], 2e-5 * (*expected)[page]);
    }
    EXPECT_LE(device().most_held, roomy.device_use().bytes + bytes);
    EXPECT_LE(tight.device_use().bytes, bytes);
    in_passes = in_passes || device().scans > 1;
  }
  EXPECT_TRUE(in_passes);
}

// The masses of an index without a device, to the bit.
void ExpectTheHostScans(const HeadsIndex& index, const Case& made, const HeadsOptions& on_host) {
  EXPECT_EQ(*Mass(index, made.q, made.weights, made.filter),
            *Mass(made.Build(on_host), made.q, made.weights, made.filter));
}

TEST_P(HipHeadsTest, TheHostScansWhenTheKeysDoNotFit) {
  const Case made = MakeCase({.heads = kGroupedHeads, .pages = 40, .question = 3}, 71);
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{100'000}}) {
    SCOPED_TRACE(bytes);
    device().most_held = 0;
    const HeadsIndex index = made.Build(OnDevice(bytes));
    ExpectTheHostScans(index, made, OnHost());
    EXPECT_EQ(device().held(), 0) << "nothing is kept in vain";
    EXPECT_LE(device().most_held, bytes);
    EXPECT_EQ(index.TakeDeviceFailure().code(), StatusCode::kCapacity);
    EXPECT_TRUE(index.TakeDeviceFailure().ok()) << "said once";
    EXPECT_EQ(device().scans, 0);
  }
}

TEST_P(HipHeadsTest, TheHostScansFromThePageOnThatDoesNotFit) {
  const Case made = MakeCase({.heads = kOneHead, .pages = 40, .question = 3}, 72);
  HeadsIndex index(made.heads, made.dim, OnDevice(200'000));
  ASSERT_TRUE(index.Add(made.pages[0], made.tokens[0], 0).ok());
  EXPECT_TRUE(Mass(index, made.q, made.weights, PageMask(1, true)).ok());
  EXPECT_EQ(index.device_use().scans, 1);
  for (size_t page = 1; page < made.pages.size(); ++page) {
    ASSERT_TRUE(index.Add(made.pages[page], made.tokens[page], made.sinks[page]).ok());
    EXPECT_LE(device().held(), 200'000);
  }
  if (GetParam() == KeyStorage::kBf16) {  // of 8 KiB a page; the others take half
    EXPECT_EQ(index.TakeDeviceFailure().code(), StatusCode::kCapacity);
    EXPECT_EQ(device().held(), 0);
    ExpectTheHostScans(index, made, OnHost());
  } else {
    ExpectMass(index, made);
    EXPECT_EQ(index.device_use().scans, 2);
  }
}

TEST_P(HipHeadsTest, TheHostScansWhenTheDeviceFails) {
  const Case made = MakeCase({.heads = kGroupedHeads, .pages = 40, .question = 3}, 73);
  const HeadsIndex index = made.Build(OnDevice());
  device().scans_left = 0;  // a launch
  ExpectTheHostScans(index, made, OnHost());
  EXPECT_EQ(index.TakeDeviceFailure().code(), StatusCode::kIoError);
  device().scans_left = 1;
  device().allocations_left = 0;
  ExpectMass(index, made);  // the room of the search before is there
  EXPECT_EQ(index.device_use().scans, 1);
  device().uploads_left = 0;  // of the queries
  ExpectTheHostScans(index, made, OnHost());
  EXPECT_EQ(index.TakeDeviceFailure().code(), StatusCode::kIoError);

  const HeadsIndex no_memory = made.Build(OnDevice());
  ExpectTheHostScans(no_memory, made, OnHost());
  EXPECT_EQ(no_memory.TakeDeviceFailure().code(), StatusCode::kCapacity);
  device().allocations_left = 100;
  device().uploads_left = 17;  // pages
  const HeadsIndex half = made.Build(OnDevice());
  ExpectTheHostScans(half, made, OnHost());
  EXPECT_EQ(half.TakeDeviceFailure().code(), StatusCode::kIoError);
  EXPECT_EQ(half.device_use().bytes, 0) << "an archive is there as a whole or not at all";
  device().allocations_left = 1;  // none for a search
  device().uploads_left = 1000;
  device().scans_left = 1000;
  const HeadsIndex no_room = made.Build(OnDevice());
  ExpectTheHostScans(no_room, made, OnHost());
  EXPECT_EQ(no_room.TakeDeviceFailure().code(), StatusCode::kCapacity);
  device().allocations_left = 1;  // the device has memory again
  ExpectMass(no_room, made);
  EXPECT_EQ(no_room.device_use().scans, 1);
}

TEST_P(HipHeadsTest, SearchesRunBesideEachOther) {
  const Case made = MakeCase({.heads = kGroupedHeads, .dim = 16, .pages = 50, .page_tokens = 32, .question = 4}, 74);
  const HeadsIndex index = made.Build(OnDevice());
  const auto expected = Mass(index, made.q, made.weights, made.filter);
  std::vector<std::vector<float>> found(4);
  std::vector<std::thread> threads;
  for (auto& mass : found) {
    threads.emplace_back([&] { mass = Mass(index, made.q, made.weights, made.filter).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mass : found) EXPECT_EQ(mass, *expected);
  EXPECT_EQ(index.device_use().scans, 5);
}

}  // namespace
}  // namespace everlong::index
