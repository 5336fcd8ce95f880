// The RAM tier over a memory's segments: parts of pages that were written or read lately, under a byte budget. A part
// (one layer of a page) is the unit, so that reading page by page and reading layer by layer share what is there.
//
// Eviction is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): what comes in stands
// in a small queue and leaves with it unless it was asked for meanwhile; a scan, or the writing of a long text,
// therefore does not push out what is in use.
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

#include "part_buffers.h"

namespace everlong::store {

// Thread-safe. Bytes are copied in and out; what a reader holds stays alive when it is evicted.
class HostTier {
 public:
  using Bytes = std::shared_ptr<const std::byte[]>;

  explicit HostTier(int64_t budget) : budget_(budget) {}

  // Parts [first, first + count) of a page: null where one is not here.
  [[nodiscard]] std::vector<Bytes> Find(int64_t block, int32_t page, int32_t first, int32_t count);
  // Takes parts of `part_bytes` each, the first being part `first`. What is here already stays as it is. `erasures`
  // from before it was known that the block is not forgotten: nothing is taken if there was another one since, and what
  // there is no memory for is not taken either.
  void Insert(int64_t block, int32_t page, int32_t first, int64_t part_bytes, std::span<const std::byte> parts,
              int64_t erasures);
  void Erase(std::span<const int64_t> blocks);
  [[nodiscard]] int64_t erasures() const;  // so far
  // What is over a smaller budget goes at once, and back to the system.
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
    int uses = 0;  // since it came or was last looked at by the eviction; at most kMaxUses
    bool in_main = false;
  };
  using Evicted = std::vector<Bytes>;  // freed outside of the lock

  // What takes memory comes before what changes in each of these, so that they may throw.
  void InsertCopies(int64_t block, int32_t page, int32_t first, int64_t part_bytes, std::span<const std::byte> parts,
                    int64_t erasures);
  void EvictFor(int64_t bytes, Evicted& evicted);
  void EvictFromSmall(Evicted& evicted);
  void EvictFromMain(Evicted& evicted);
  void Remember(const Key& key);

  std::shared_ptr<PartBuffers> buffers_ = PartBuffers::Create();
  std::atomic<int64_t> budget_;  // changed under the lock
  mutable std::mutex mutex_;
  std::unordered_map<Key, Entry, Hash> entries_;
  // Oldest first; every entry stands once in one of them.
  std::deque<Key> small_;
  std::deque<Key> main_;
  std::deque<Key> ghosts_;  // evicted from the small queue lately
  std::unordered_set<Key, Hash> is_ghost_;
  int64_t bytes_ = 0;
  int64_t small_bytes_ = 0;
  int64_t erasures_ = 0;
};

}  // namespace everlong::store
