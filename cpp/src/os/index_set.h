// The parts of the index over one store, the table of blocks that they share, and who may touch them when.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "block_reader.h"
#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/block_table.h"
#include "everlong/index/part.h"
#include "everlong/index/part_kinds.h"
#include "everlong/index/token_statistics.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"
#include "saved_indexes.h"
#include "stored_blocks.h"

namespace everlong::os {

// Changes take turns (TakeTurn). Searches share Lock(), which a change takes alone only for the moment in which the
// table changes: a block is given to every part before it is in the table, and is out of the table before it is taken
// from the parts. What a search finds in the table every part has, and what it does not find there it never returns.
class IndexSet {
 public:
  // Both outlive it.
  IndexSet(store::MemoryStore& store, const kv::PayloadLayout& layout);

  [[nodiscard]] std::unique_lock<std::mutex> TakeTurn() const { return std::unique_lock(turn_); }
  using Lock = std::shared_lock<FairSharedMutex>;
  [[nodiscard]] Lock Read() const { return Lock(guard_); }
  // The same with the parts there that are made when they are asked.
  [[nodiscard]] Result<Lock> ReadWith(std::span<const index::IndexPart> asked);

  // --- under Read, or by whoever has the turn
  [[nodiscard]] const index::BlockTable& table() const { return table_; }
  // nullptr when it is not there.
  [[nodiscard]] index::Part* part(index::IndexPart part) const;
  // Why the parts do not match the store any more; ok as long as they do.
  [[nodiscard]] const Status& broken() const { return broken_; }

  [[nodiscard]] const index::TokenStatistics& statistics() const { return statistics_; }  // thread-safe

  // Everything from the store, before anybody else knows this. Fails with what is wrong, and is broken then.
  Status Load();

  // --- by whoever has the turn

  // Load, in place of what is there: parts that their options made are made of these again. Nobody searches meanwhile.
  Status Reload();
  // All that the parts there take of a block.
  [[nodiscard]] index::PartNeeds Needs() const;
  // What Append would refuse.
  [[nodiscard]] Status Check(const index::BlockInput& block) const;
  // A block that was stored, by what the parts take of it (its `first_page` is set here). What fails breaks the set.
  Status Append(const index::NewBlock& block, index::BlockInput input);
  // Blocks that are not stored any more, by the token ids that they were added with; those that are not here do not
  // count. What fails breaks the set.
  Status Forget(const std::map<int64_t, std::vector<int32_t>>& token_ids);
  // A forgotten page keeps its number until the parts are made anew: in RAM once most pages are forgotten, in a folder
  // once all are, for payload that is read again may be damaged and was there until then.
  Status GiveBackForgotten();
  // Whether a block of the table is not in the store any more.
  [[nodiscard]] bool HasBlocksThatAreGone() const;

  // An empty part.
  using Make = std::function<Result<std::unique_ptr<index::Part>>(const index::PartContext&)>;
  // The part over every block, taken from what is saved where that fits, in place of the one that is there, which stays
  // until then. No `make`: none.
  Status Replace(index::IndexPart part, const Make& make);
  // Part::AddVectors of a part that is there.
  Status AddVectors(index::IndexPart part, int64_t block, std::span<const int32_t> pages,
                    std::span<const float> vectors, std::span<const std::vector<int32_t>> terms);
  // BlockTable::AddTags, once they are stored.
  void AddTags(int64_t block, std::span<const std::string> tags);
  // What a part's vectors are searched by, where that has lists; nullptr elsewhere. Beside searches.
  [[nodiscard]] std::shared_ptr<index::NeuralInvertedIndex> lists(index::IndexPart part) const;
  Status SetRouter(index::IndexPart part, const index::NeuralInvertedIndex::Router& router);

  // Part::CheckTensors of every part, for tensors of a block that is in the table; kNotFound for one that is not.
  [[nodiscard]] Status CheckTensors(int64_t block, std::span<const index::BlockTensor> tensors) const;
  // Part::TensorsCame of every part that takes tensors, once they are stored. What fails breaks the set.
  Status TensorsCame(int64_t block, std::span<const index::BlockTensor> tensors);

  // Tells the store what all of this holds in RAM, or will hold: `more`.
  void TellBytes(int64_t more = 0) const;
  // What else is kept in RAM for this memory; any thread. Told with the next TellBytes.
  void SetBytesBeside(int64_t bytes) { bytes_beside_ = bytes; }

  // --- what index/ has, by whoever has the turn: index_set_saved.cc
  Status Save();
  // What index/ has of forgotten blocks goes; what it has of others stays, also of a part that is not there. What a
  // caller gave is written without them in one step; where that fails it stays as it was, and the failure says so.
  Status RemoveSavedOfForgotten();
  // Copies what index/ has into the folder of a fork.
  void CarrySaved(const FilePath& folder) const;

  // --- thread-safe
  // What was wrong with saved parts, and what parts have to say: a sentence each, once.
  [[nodiscard]] std::vector<std::string> TakeMessages() const;

 private:
  struct Slot {
    std::unique_ptr<index::Part> part;
    Make make;  // of the part that is there
  };

  [[nodiscard]] std::string Name() const;
  // Of a block of the table; kNotFound.
  [[nodiscard]] Result<index::BlockInput> InputWith(int64_t block, std::span<const index::BlockTensor> tensors) const;
  Status LoadBlocks();
  // These parts, which take nothing but token ids, over every block of the table, and the statistics: of what is saved,
  // and of the token ids of those blocks that it lacks. A block that is gone meanwhile leaves the table.
  Status LoadTokenIds(std::span<const index::IndexPart> parts, const StoredBlocks& stored);
  // A part with what is saved of its kind, or an empty one.
  [[nodiscard]] Result<std::unique_ptr<index::Part>> MakeOfSaved(const index::PartKind& kind, const Make& make);
  // A part over every block of the table.
  [[nodiscard]] Result<std::unique_ptr<index::Part>> Build(const index::PartKind& kind, const Make& make);
  Status MakeWhenAsked(index::IndexPart part);
  void Break(const Status& status);
  // Alone, for a moment.
  [[nodiscard]] std::unique_lock<FairSharedMutex> Change() { return std::unique_lock(guard_); }
  // Calls visit(kind, part) for every part that is there.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (size_t number = 0; number < slots_.size(); ++number) {
      if (slots_[number].part != nullptr) {
        visit(index::KindOf({static_cast<uint8_t>(number)}), *slots_[number].part);
      }
    }
  }

  [[nodiscard]] std::vector<CoveredBlock> CoveredBlocks() const;  // not forgotten, in order of archiving
  // The place of a saved part; none for a memory in RAM.
  [[nodiscard]] std::optional<SavedIndex> Saved(std::string_view name) const;
  // Whether an empty part took up what is saved of its kind; if not, it is of no use any more, or was not touched. An
  // error where what a caller gave may be whole and cannot be read now: nothing may take its place.
  [[nodiscard]] Result<bool> LoadSaved(const index::PartKind& kind, index::Part& part);
  Status SavePart(const index::PartKind& kind, const index::Part& part) const;
  // The saved vectors of what is not forgotten in the place of all; false when there are none to keep.
  [[nodiscard]] Result<bool> KeepSaved(const index::PartKind& kind, const SavedIndex& saved);
  // What a caller gave, as SavePart; false when there is nothing of a block that is not forgotten.
  [[nodiscard]] Result<bool> SaveGiven(const index::PartKind& kind, const index::Part& part) const;
  // Every part that there is differs from what is saved.
  void MarkUnsaved();
  void Say(std::string_view name, const Status& why) const;
  // Of a tensor that is stored and cannot be read.
  void SayDamaged(std::string_view name, const Status& why) const;
  void AddMessage(std::string message) const;

  store::MemoryStore& store_;
  const kv::PayloadLayout& layout_;
  mutable std::mutex turn_;
  mutable FairSharedMutex guard_;
  index::BlockTable table_;
  index::TokenStatistics statistics_;
  const index::PartContext context_;
  const std::vector<index::IndexPart> parts_;
  std::vector<Slot> slots_;  // by IndexPart::number
  Status broken_;
  std::set<std::string, std::less<>> unsaved_;  // parts that differ from what index/ has of them

  std::atomic<int64_t> bytes_beside_ = 0;

  mutable std::mutex message_guard_;
  mutable std::vector<std::string> messages_;
};

}  // namespace everlong::os
