#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "../../cpp/store/part_buffers.h"

namespace everlong::store {
namespace {

using Part = std::shared_ptr<std::byte[]>;

constexpr int64_t kPartBytes = 26'112;  // a layer of 64 tokens of SmolLM2 in e4m3
constexpr int64_t kMostKept = int64_t{8} << 20;

struct Filled {
  Part part;
  int64_t bytes = 0;
  std::byte value{};
};

Filled Fill(PartBuffers& buffers, int64_t bytes, std::byte value) {
  Filled filled{buffers.Take(bytes), bytes, value};
  std::memset(filled.part.get(), static_cast<int>(value), static_cast<size_t>(bytes));
  return filled;
}

bool IsWhole(const Filled& filled) {
  const std::span content(filled.part.get(), static_cast<size_t>(filled.bytes));
  return std::ranges::all_of(content, [&](std::byte byte) { return byte == filled.value; });
}

TEST(PartBuffers, PartsDoNotOverlapWhateverComesAndGoes) {
  const auto buffers = PartBuffers::Create();
  std::mt19937 random(1);
  std::vector<Filled> held;
  int64_t taken = 0;
  for (int step = 0; step < 4000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      const int64_t bytes = random() % 4 == 0 ? 1 + random() % 100'000 : kPartBytes;
      held.push_back(Fill(*buffers, bytes, static_cast<std::byte>(random() % 256)));
      taken += bytes;
    } else {
      std::swap(held[random() % held.size()], held.back());
      ASSERT_TRUE(IsWhole(held.back()));
      taken -= held.back().bytes;
      held.pop_back();
    }
    const int64_t rounding = std::ssize(held) * 64;
    ASSERT_GE(buffers->bytes(), taken);
    ASSERT_LE(buffers->bytes(), taken + rounding + kMostKept);
  }
  EXPECT_TRUE(std::ranges::all_of(held, IsWhole));
  held.clear();
  EXPECT_LE(buffers->bytes(), kMostKept);
}

TEST(PartBuffers, WhatIsGivenBackIsUsedAgainAndOnlyALittleIsKept) {
  const auto buffers = PartBuffers::Create();
  constexpr int kParts = 2000;  // 52 MB
  for (int round = 0; round < 3; ++round) {
    std::vector<Filled> held;
    int emptied = 0;
    for (int i = 0; i < kParts; ++i) {
      const Part part = buffers->Take(kPartBytes);
      // In the middle of a part there is a whole page: zeros, where the system had it back in between.
      if (part[kPartBytes / 2] == std::byte{0}) ++emptied;
      held.push_back({part, kPartBytes, std::byte{7}});
      std::memset(part.get(), 7, kPartBytes);
    }
    EXPECT_GE(emptied, kParts - kMostKept / kPartBytes) << "round " << round;
    EXPECT_TRUE(round == 0 || emptied < kParts) << "none of them was kept";
    held.clear();
    EXPECT_LE(buffers->bytes(), kMostKept);
    EXPECT_GT(buffers->bytes(), kMostKept - 2 * kPartBytes);
  }
}

TEST(PartBuffers, APartLargerThanARegionHasRoom) {
  const auto buffers = PartBuffers::Create();
  const Filled large = Fill(*buffers, int64_t{100} << 20, std::byte{9});
  const Filled small = Fill(*buffers, 1, std::byte{8});
  EXPECT_TRUE(IsWhole(large));
  EXPECT_TRUE(IsWhole(small));
}

TEST(PartBuffers, APartOutlivesWhoMadeIt) {
  auto buffers = PartBuffers::Create();
  const Filled part = Fill(*buffers, kPartBytes, std::byte{3});
  buffers.reset();
  EXPECT_TRUE(IsWhole(part));
}

TEST(PartBuffers, ThreadsTakeAndGiveBackBesideEachOther) {
  const auto buffers = PartBuffers::Create();
  std::vector<std::thread> threads;
  std::vector<int> broken(4, 0);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      std::vector<Filled> held;
      for (int step = 0; step < 2000; ++step) {
        if (held.size() < 100) {
          held.push_back(Fill(*buffers, kPartBytes - random() % 3 * 64, static_cast<std::byte>(thread + 1)));
        } else {
          std::swap(held[random() % held.size()], held.back());
          broken[static_cast<size_t>(thread)] += IsWhole(held.back()) ? 0 : 1;
          held.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broken, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace everlong::store
