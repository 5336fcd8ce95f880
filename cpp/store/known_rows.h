// Rows of pages that were read lately, in RAM, up to a bound however many blocks there are.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace everlong::store {

// The place of a record, and the checksums of its parts.
struct PageRow {
  int32_t segment = 0;
  int64_t offset = 0;  // of its record
  int64_t part_bytes = 0;
  std::vector<uint32_t> part_crcs;
  bool operator==(const PageRow&) const = default;
};

// However much RAM there is.
inline constexpr int64_t kMostKnownBytes = int64_t{8} << 20;

// Thread-safe.
class KnownRows {
 public:
  // The rows of a block's kv; null where one is missing or damaged.
  using Rows = std::shared_ptr<const std::vector<std::shared_ptr<const PageRow>>>;

  explicit KnownRows(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // Return a block's rows; null where they are not known.
  [[nodiscard]] Rows Find(int64_t block) const;
  // Keep them. The oldest go where there are too many.
  void Put(int64_t block, const Rows& rows);
  void Drop(std::span<const int64_t> blocks);
  void Clear();
  [[nodiscard]] int64_t bytes() const;  // about

 private:
  // Call it under mutex_.
  void DropOne(int64_t block);

  const int64_t most_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, Rows> rows_;
  std::deque<int64_t> order_;  // blocks of rows_, oldest first, and some that have left it
  int64_t bytes_ = 0;          // of rows_, about
};

}  // namespace everlong::store
