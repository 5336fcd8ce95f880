// The scans of hip/ as a device in this process: the kernels' threads run one after the other, as their launcher
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
#include "../../hip/meaning_units.h"
#include "everlong/index/index_device.h"

namespace everlong::hip::host {

// What each of the lanes of a page has of its rows.
template <class Row, int32_t kRows>
using LaneRows = std::array<Row, static_cast<size_t>(kRows)>;

// The exchanges of all lanes, one step after the other.
template <class Exchange, int32_t kStep, class Row, int32_t kRows>
void JoinLanes(std::vector<LaneRows<Row, kRows>>& lanes) {
  constexpr auto kGiven = static_cast<size_t>(Exchange::Exchanged(kStep));
  struct Given {
    Row rows[kGiven];
  };
  std::vector<Given> given(lanes.size());
  const auto of = [&](size_t lane) -> Row(&)[kRows] { return *reinterpret_cast<Row(*)[kRows]>(lanes[lane].data()); };
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    Exchange::template Give<kStep>(static_cast<int32_t>(lane), of(lane), given[lane].rows);
  }
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    Exchange::template Take<kStep>(given[lane ^ static_cast<size_t>(Exchange::Distance(kStep))].rows, of(lane));
  }
  if constexpr (kStep + 1 < Exchange::kSteps) JoinLanes<Exchange, kStep + 1, Row, kRows>(lanes);
}

// The shared memory of a block of threads, for so many numbers of 32 bits; all of them NaN.
class SharedMemory {
 public:
  explicit SharedMemory(size_t numbers) : numbers_((numbers + 3) / 4) {}
  template <class Number>
  Number* at() {
    return reinterpret_cast<Number*>(numbers_.data());
  }

 private:
  struct alignas(16) Four {
    float numbers[4] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN(),
                        std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
  };
  std::vector<Four> numbers_;
};

template <index::KeyStorage kStorage>
void ScorePages(const index::HeadsJob& job, int32_t threads) {
  const Divisor by_blocks(job.blocks);
  for (int64_t at = 0; at < ScoreTasks(job, threads); ++at) {
    const PageTask task = ScoreTaskAt(job, by_blocks, at, threads);
    SharedMemory shared(static_cast<size_t>(WordDims<kStorage>(job.layout)) * index::kBlockRows);
    auto* const queries = shared.at<float>();
    for (int32_t t = 0; t < threads; ++t) StageQueries<kStorage>(job, task.block, t, threads, queries);
    for (int64_t page = task.first_page; page < task.end_page; ++page) {
      std::vector<LaneRows<index::PageShare, index::kBlockRows>> lanes(kPageLanes);
      for (int32_t lane = 0; lane < kPageLanes; ++lane) {
        index::PageShare shares[index::kBlockRows];
        ScorePage<kStorage>(job, task.block, page, lane, queries, shares);
        std::ranges::copy(shares, lanes[static_cast<size_t>(lane)].begin());
      }
      JoinLanes<ShareExchange, 0, index::PageShare, index::kBlockRows>(lanes);
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

inline void ScanMeaning(const index::MeaningJob& job) {
  constexpr int32_t kThreads = 20;  // room for five pages, and no power of two
  const Divisor by_blocks(job.blocks);
  for (int64_t at = 0; at < MeaningTasks(job, kThreads); ++at) {
    const PageTask task = MeaningTaskAt(job, by_blocks, at, kThreads);
    SharedMemory shared(static_cast<size_t>(job.quads) * index::kMeaningRows);
    auto* const rows = shared.at<uint32_t>();
    for (int32_t t = 0; t < kThreads; ++t) StageRows(job, task.block, t, kThreads, rows);
    for (int64_t page = task.first_page; page < task.end_page; ++page) {
      std::vector<LaneRows<float, index::kMeaningRows>> lanes(kTileLanes);
      const auto of = [&](int32_t lane) -> float (&)[index::kMeaningRows] {
        return *reinterpret_cast<float (*)[index::kMeaningRows]>(lanes[static_cast<size_t>(lane)].data());
      };
      for (int32_t lane = 0; lane < kTileLanes; ++lane) MaximaOfLane(job.pages[page], job.quads, lane, rows, of(lane));
      JoinLanes<MaximaExchange, 0, float, index::kMeaningRows>(lanes);
      for (int32_t lane = 0; lane < kTileLanes; ++lane) StoreMaxima(job, task.block, page, lane, of(lane));
    }
  }
  for (int64_t page = 0; page < job.page_count; ++page) ScoreOfPage(job, page);
}

// What is never written to memory there reads as NaN. Counts what is asked of it, and fails on demand.
class HostDevice : public index::IndexDevice {
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
  Status Scan(const index::MeaningJob& job, std::span<index::MeaningScore> scores) override {
    if (scans_left-- <= 0) return IoError("no launch");
    ++scans;
    EXPECT_EQ(std::ssize(scores), job.page_count);
    ScanMeaning(job);
    std::copy_n(job.scores, job.page_count, scores.begin());
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
