// The RAM tier over a memory's segments: a cache of parts of pages that were written or read lately, under a byte
// budget. The unit is a part (one layer of a page), so that reading page by page and reading layer by layer share the
// cache.
//
// Eviction is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023). A new part enters a
// small queue, and leaves with it unless it was asked for meanwhile. So a scan, or writing a long text, pushes out no
// parts in use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "known_rows.h"
#include "part_buffers.h"

namespace everlong::store {

// Thread-safe. Bytes are copied in and out. What a reader holds stays alive when it is evicted.
class HostTier {
 public:
  using Bytes = std::shared_ptr<const std::byte[]>;

  explicit HostTier(int64_t budget) : budget_(budget) {}

  // Return parts [first, first + count) of a page as `row` names them: null where one is not here. A page may have been
  // coded anew since its parts came here.
  [[nodiscard]] std::vector<Bytes> Find(int64_t block, int32_t page, int32_t first, int32_t count, const PageRow& row);
  // Copy parts of a page, from part `first`. Parts that are here already stay as they are. `erasures` is from before
  // the caller knew that the block is not forgotten: if there was another one since, nothing is taken. Parts without
  // memory for them are left out too.
  void Insert(int64_t block, int32_t page, int32_t first, const PageRow& row, std::span<const std::byte> parts,
              int64_t erasures);
  void Erase(std::span<const int64_t> blocks);
  [[nodiscard]] int64_t erasures() const;  // so far
  // Set the budget. What is over a smaller one goes back to the system at once.
  void SetBudget(int64_t budget);
  [[nodiscard]] int64_t bytes() const;

 private:
  struct Key {
    int64_t block = 0;
    int32_t page = 0;
    int32_t part = 0;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    Bytes bytes;
    int64_t size = 0;
    uint32_t crc = 0;
    int uses = 0;  // since it came or the eviction last looked at it; at most kMaxUses
    bool in_main = false;
    // Return whether it is what `row` says of this part.
    [[nodiscard]] bool Is(const PageRow& row, int32_t part) const {
      return size == row.part_bytes && crc == row.part_crcs[static_cast<size_t>(part)];
    }
  };
  using Evicted = std::vector<Bytes>;  // freed outside of the lock

  // Each of these allocates before it changes anything, so that it may throw.
  void InsertCopies(int64_t block, int32_t page, int32_t first, const PageRow& row, std::span<const std::byte> parts,
                    int64_t erasures);
  // Remove an entry and its place in a queue.
  void Remove(const Key& key, Evicted& evicted);
  void EvictFor(int64_t bytes, Evicted& evicted);
  void EvictFromSmall(Evicted& evicted);
  void EvictFromMain(Evicted& evicted);
  void Remember(const Key& key);

  std::shared_ptr<PartBuffers> buffers_ = PartBuffers::Create();
  std::atomic<int64_t> budget_;  // changed under the lock
  mutable std::mutex mutex_;
  std::unordered_map<Key, Entry, Hash> entries_;
  // Oldest first. Every entry is in exactly one of them.
  std::deque<Key> small_;
  std::deque<Key> main_;
  std::deque<Key> ghosts_;  // evicted from the small queue lately
  std::unordered_set<Key, Hash> is_ghost_;
  int64_t bytes_ = 0;
  int64_t small_bytes_ = 0;
  int64_t erasures_ = 0;
};

}  // namespace everlong::store
