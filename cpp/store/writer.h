// What changes a store. Who has a Writer has the store's turn, and nobody else has a catalog or segments to change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "append_queue.h"
#include "catalog.h"
#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"
#include "segment_set.h"
#include "store_state.h"

namespace everlong::store {

// One at a time: the next one waits for the turn. Everything is durable on return, and all or nothing unless it says
// otherwise. The queue of what was submitted waits for the turn, so nothing here waits for the queue. Callers do that
// before, and check that they may write.
class Writer {
 public:
  // Take the turn of a store, which outlives this.
  explicit Writer(StoreState& state) : turn_(state.turn_), state_(state) {}

  [[nodiscard]] const StoreState& state() const { return state_; }
  [[nodiscard]] Catalog& catalog() const { return *state_.rooms_.catalog; }

  // --- blocks: store_write.cc and store_tensors.cc
  // Store blocks and return how many: a prefix. `failure` says why not all.
  size_t StoreBlocks(std::span<NewBlock> blocks, Status& failure);
  size_t Commit(std::span<const OwnedDraft> blocks, Status& failure);
  // Restore blocks of another memory, which keep their ids.
  Status Restore(std::span<const OwnedDraft> blocks);
  Status ReplacePages(const BlockInfo& block, std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
                      std::span<const std::string> tags);
  // Give a block these tensors, beside those that it has under names which are in neither argument.
  Status ChangeTensors(const BlockInfo& block, std::span<const TensorView> put, std::span<const std::string> dropped);
  // Give no id below `next` from now on.
  Status ReserveIdsBelow(int64_t next);
  // Store the nodes and edges of `graph` that name no block missing here, in one commit.
  Status RestoreGraph(Graph graph);

  // --- the life of a memory: store_life.cc, store_verify.cc, export.cc and migration.cc
  Status Forget(std::span<const int64_t> blocks, const GraphChange& change);
  Result<int64_t> Compact();
  Result<int64_t> MakeRoom();
  // Look again at what a check found, and drop what is damaged still. `report` then has that damage alone.
  Status Repair(VerifyReport& report);
  // Make a new memory, which has no blocks yet, one with what is here: by its files, or block by block.
  Status CopyInto(Writer& target);
  // Bring an older format to this one: the catalog in one commit, then the manifest.
  Status Migrate();

 private:
  // Write the block's records and note where they lie.
  Status WriteRecords(NewBlock& block);
  // In RAM: give back the bytes of records that no row names any more. In a folder they stay until Compact.
  void FreeInRam(std::span<const PageRow> records);
  // Remove all bytes of segments that no block has which is there.
  Result<int64_t> KeepLivePayload();
  Status CloneFilesInto(Writer& target);
  Status MigrateCatalog();
  [[nodiscard]] SegmentSet& segments() const { return *state_.rooms_.segments; }

  const std::unique_lock<std::mutex> turn_;
  StoreState& state_;
};

}  // namespace everlong::store
