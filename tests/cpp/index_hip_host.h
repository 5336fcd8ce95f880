// The heads scan of hip/ as a device in this process: the kernels' threads run one after the other, as their launcher
// starts them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
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

inline void ScanHeads(const index::HeadsJob& job) {
  constexpr int32_t kThreads = 80;  // room for two tasks, and threads that have none
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  WithStorage(job.layout.storage, [&](auto storage) {
    for (int64_t first = 0; first < PageTasks(job); first += TasksAtOnce(kThreads)) {
      std::vector<index::PageShare> shared(size_t{index::kBlockRows} * kThreads, {kNan, kNan});
      for (int32_t t = 0; t < kThreads; ++t) ScoreTokens<storage()>(job, first, t, kThreads, shared.data());
      for (int32_t t = 0; t < kThreads; ++t) JoinTokens(job, first, t, kThreads, shared.data());
    }
  });
  for (int64_t row = 0; row < job.blocks * index::kBlockRows; ++row) {
    std::vector<RowSum> shared(kThreads, {kNan, kNan});
    for (int32_t t = 0; t < kThreads; ++t) SumRow(job, row, t, kThreads, shared.data());
    FactorRow(job, row, kThreads, shared.data());
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
