// The queue of blocks on their way to the disk. It is bounded, and a thread commits all blocks in it at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"

namespace everlong::store {

// A draft that owns what it points to.
class OwnedDraft {
 public:
  OwnedDraft(int64_t id, const BlockDraft& draft);
  OwnedDraft(OwnedDraft&&) = default;  // vectors keep their place when they move
  OwnedDraft& operator=(OwnedDraft&&) = default;
  OwnedDraft(const OwnedDraft&) = delete;
  OwnedDraft& operator=(const OwnedDraft&) = delete;

  [[nodiscard]] int64_t id() const { return id_; }
  [[nodiscard]] const BlockDraft& draft() const { return draft_; }
  // Return the bytes that count against the queue's budget: those of payload and tensors.
  static int64_t BytesOf(const BlockDraft& draft);

 private:
  int64_t id_;
  std::vector<int32_t> token_ids_;
  std::vector<std::byte> payload_;  // of a draft with a payload without owner
  std::vector<int64_t> page_bytes_;
  std::vector<TensorView> tensors_;
  std::vector<std::byte> tensor_bytes_;
  BlockDraft draft_;
};

// Thread-safe. The contract of Submit, Flush and queued reads is in everlong/store/memory_store.h.
class AppendQueue {
 public:
  // Stores a prefix of the blocks and returns how many. `failure` says why not all. If it throws, it has stored none.
  using Commit = std::function<size_t(std::span<const OwnedDraft> blocks, Status& failure)>;

  // `next_id` is the first id that it gives.
  AppendQueue(int64_t budget, int64_t next_id, Commit commit)
      : budget_(budget), commit_(std::move(commit)), next_id_(next_id) {}
  // Commits the blocks in the queue.
  ~AppendQueue();
  AppendQueue(const AppendQueue&) = delete;
  AppendQueue& operator=(const AppendQueue&) = delete;

  // Take an id for a block outside of the queue; GiveBack it if that was not stored. kCapacity after kLargestBlockId.
  Result<int64_t> TakeId();
  void GiveBack(int64_t id);
  void SkipIdsBelow(int64_t next);
  // Return the id of the block that comes next.
  [[nodiscard]] int64_t next_id() const;
  Result<int64_t> Submit(const BlockDraft& draft);
  // Wait until every block that was submitted before, or every one up to `id`, is committed or lost.
  void Wait();
  void WaitFor(int64_t id);
  Status Flush(std::vector<int64_t>* lost);
  // As MemoryStore.
  Result<int64_t> WaitForSubmitted();
  // Return the failure that Flush will report.
  [[nodiscard]] Status failure() const;

 private:
  void Work();
  void NoteFailure(const Status& failure);
  [[nodiscard]] Status CheckIdsAreLeft() const;

  const int64_t budget_;
  const Commit commit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t next_id_;
  std::vector<OwnedDraft> queue_;
  std::set<int64_t> pending_;  // submitted, neither committed nor lost
  int64_t bytes_ = 0;          // OwnedDraft::BytesOf those
  Status failure_;             // that Flush will report
  int64_t failures_ = 0;       // so far
  Status newest_failure_;      // for those who waited when Flush had reported it
  std::set<int64_t> lost_;     // by nodes of pending_, so that losing a block allocates nothing
  bool stopping_ = false;
  std::thread thread_;  // started by the first block
};

}  // namespace everlong::store
