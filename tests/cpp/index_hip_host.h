// The heads scan of hip/ as a device in this process: the kernels' threads run one after the other, as their launcher
// starts them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "../../hip/heads_units.h"
#include "everlong/index/heads_device.h"

namespace everlong::hip::host {

// One exchange of all lanes after the other.
template <int32_t kStep>
void JoinLanes(std::vector<std::array<index::PageShare, index::kBlockRows>>& lanes) {
  std::array<index::PageShare[JoinedRows(kStep)], kPageLanes> given;
  const auto of = [&](int32_t lane) -> index::PageShare(&)[index::kBlockRows] {
    return *reinterpret_cast<index::PageShare(*)[index::kBlockRows]>(lanes[static_cast<size_t>(lane)].data());
  };
  for (int32_t lane = 0; lane < kPageLanes; ++lane) {
    GiveRows<kStep>(lane, of(lane), given[static_cast<size_t>(lane)]);
  }
  for (int32_t lane = 0; lane < kPageLanes; ++lane) {
    TakeRows<kStep>(given[static_cast<size_t>(lane ^ JoinDistance(kStep))], of(lane));
  }
  if constexpr (kStep + 1 < kJoinSteps) JoinLanes<kStep + 1>(lanes);
}

template <index::KeyStorage kStorage>
void ScorePages(const index::HeadsJob& job, int32_t threads) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Divisor by_blocks(job.blocks);
  for (int64_t at = 0; at < ScoreTasks(job, threads); ++at) {
    const ScoreTask task = ScoreTaskAt(job, by_blocks, at, threads);
    // Aligned as the shared memory of a block of threads is.
    struct alignas(16) Four {
      float numbers[4];
    };
    const auto numbers = static_cast<size_t>(WordDims<kStorage>(job.layout)) * index::kBlockRows;
    std::vector<Four> staged(numbers / 4, {kNan, kNan, kNan, kNan});
    auto* const queries = reinterpret_cast<float*>(staged.data());
    for (int32_t t = 0; t < threads; ++t) StageQueries<kStorage>(job, task.block, t, threads, queries);
    for (int64_t page = task.first_page; page < task.end_page; ++page) {
      std::vector<std::array<index::PageShare, index::kBlockRows>> lanes(kPageLanes);
      for (int32_t lane = 0; lane < kPageLanes; ++lane) {
        index::PageShare shares[index::kBlockRows];
        ScorePage<kStorage>(job, task.block, page, lane, queries, shares);
        std::ranges::copy(shares, lanes[static_cast<size_t>(lane)].begin());
      }
      JoinLanes<0>(lanes);
      for (int32_t lane = 0; lane < kPageLanes; ++lane) {
        StoreShare(job, task.block, page, lane, lanes[static_cast<size_t>(lane)][0]);
      }
    }
  }
}

inline void ScanHeads(const index::HeadsJob& job) {
  constexpr int32_t kThreads = 96;  // room for three pages, and no power of two
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  WithStorage(job.layout.storage, [&](auto storage) { ScorePages<storage()>(job, kThreads); });
  for (int64_t row = 0; row < job.blocks * index::kBlockRows; ++row) {
    std::vector<RowSum> shared(kThreads, {kNan, kNan});
    for (int32_t t = 0; t < kThreads; ++t) SumRow(job, row, t, kThreads, shared.data());
    for (int32_t left = kThreads; left > 1; left = HalfOf(left)) {
      for (int32_t t = 0; t < kThreads; ++t) FoldRow(left, t, shared.data());
    }
    FactorRow(job, row, shared[0]);
  }
  for (int64_t page = 0; page < job.page_count; ++page) MassOfPage(job, page);
}

// What is never written to memory there reads as NaN. Counts what is asked of it, and fails on demand.
class HostDevice : public index::HeadsDevice {
 public:
  ~HostDevice() override { EXPECT_TRUE(memory_.empty()) << "all of it is given back"; }

  Result<std::byte*> Allocate(int64_t bytes) override {
    EXPECT_GE(bytes, 1);
    if (allocations_left-- <= 0) return CapacityError("no memory");
    auto* const at = new (kAlignment) std::byte[static_cast<size_t>(bytes)];
    std::fill_n(at, bytes, std::byte{0xFF});
    memory_.emplace(at, Block{std::unique_ptr<std::byte[], FreeAligned>(at), bytes});
    most_held = std::max(most_held, held());
    return at;
  }
  void Free(std::byte* memory) override { EXPECT_EQ(memory_.erase(memory), 1U); }

  Status Upload(std::byte* to, std::span<const std::byte> from) override {
    if (uploads_left-- <= 0) return IoError("no upload");
    // Inside what was allocated.
    const auto after = memory_.upper_bound(to);
    EXPECT_NE(after, memory_.begin());
    const auto& [begin, block] = *std::prev(after);
    EXPECT_LE(to + from.size(), begin + block.bytes);
    std::ranges::copy(from, to);
    uploaded += std::ssize(from);
    return OkStatus();
  }

  Status Scan(const index::HeadsJob& job, std::span<float> mass) override {
    if (scans_left-- <= 0) return IoError("no launch");
    ++scans;
    EXPECT_EQ(std::ssize(mass), job.page_count);
    ScanHeads(job);
    std::copy_n(job.mass, job.page_count, mass.begin());
    return OkStatus();
  }

  [[nodiscard]] int64_t held() const {
    int64_t bytes = 0;
    for (const auto& [at, block] : memory_) bytes += block.bytes;
    return bytes;
  }

  // Calls that succeed from now on.
  int64_t allocations_left = std::numeric_limits<int64_t>::max();
  int64_t uploads_left = std::numeric_limits<int64_t>::max();
  int64_t scans_left = std::numeric_limits<int64_t>::max();
  int64_t scans = 0;
  int64_t uploaded = 0;   // bytes
  int64_t most_held = 0;  // bytes at a time

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct FreeAligned {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
  };
  struct Block {
    std::unique_ptr<std::byte[], FreeAligned> memory;
    int64_t bytes;
  };
  std::map<std::byte*, Block> memory_;
};

}  // namespace everlong::hip::host
