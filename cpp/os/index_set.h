// The parts of the index over one store, the table of blocks that they share, and the lock that guards both.
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

// Changes take turns: a Writer has the turn and all that changes. Searches share Lock(). A change takes it alone only
// while it changes the table. A block is given to every part before it enters the table, and leaves the table before it
// is taken from the parts. So every part has what a search finds in the table, and a search never returns what it does
// not find there.
class IndexSet {
 public:
  // All must outlive it.
  IndexSet(store::MemoryStore& store, const kv::PayloadLayout& layout, const Payloads& payloads);

  class Writer;
  [[nodiscard]] Writer TakeTurn();
  // Do the same, or return the error of a set that is broken.
  [[nodiscard]] Result<Writer> TakeSoundTurn();
  using Lock = std::shared_lock<FairSharedMutex>;
  [[nodiscard]] Lock Read() const { return Lock(guard_); }
  // Do the same, and make the parts that are made when they are asked.
  [[nodiscard]] Result<Lock> ReadWith(std::span<const index::IndexPart> asked);

  // --- under Read, or beside a Writer of one's own
  [[nodiscard]] const index::BlockTable& table() const { return table_; }
  // Return the part; nullptr when it is not there.
  [[nodiscard]] index::Part* part(index::IndexPart part) const;
  // Return why the parts do not match the store any more; ok as long as they do.
  [[nodiscard]] const Status& broken() const { return broken_; }
  // Return the blocks of which a part that is there has nothing. It looks only at those behind the first ones that have
  // all, as questions ask this each time.
  [[nodiscard]] std::vector<const index::BlockEntry*> Without(index::IndexPart part) const;

  [[nodiscard]] const index::TokenStatistics& statistics() const { return statistics_; }  // thread-safe

  // Load everything from the store, before any other thread knows this object. An error breaks the set.
  Status Load();

  // Makes an empty part.
  using Make = std::function<Result<std::unique_ptr<index::Part>>(const index::PartContext&)>;
  // Return the index of a part's vectors, if it has lists; else nullptr. Call it under Read, or beside a Writer.
  [[nodiscard]] std::shared_ptr<index::NeuralInvertedIndex> lists(index::IndexPart part) const;

  // --- thread-safe
  // Set how much other RAM this memory takes. The next change reports it to the store.
  void SetBytesBeside(int64_t bytes) { bytes_beside_ = bytes; }
  // Return messages, a sentence each, once: what was wrong with saved parts, and what parts have to say.
  [[nodiscard]] std::vector<std::string> TakeMessages() const;
  // Read all files of index/, and return what is damaged. What is merged meanwhile is no damage. kIoError, kCapacity.
  [[nodiscard]] Result<std::vector<store::Damage>> VerifySaved() const;

 private:
  struct Slot {
    std::unique_ptr<index::Part> part;
    Make make;  // of the part that is there
    // The part has all blocks below this number that are not forgotten.
    mutable std::atomic<int32_t> complete_below = 0;
  };

  [[nodiscard]] std::string Name() const;
  [[nodiscard]] Result<const index::BlockEntry*> Find(int64_t block) const;  // in the table; kNotFound
  // Break the set, unless `change` went well. It was stored: "block 3 is stored but could not be indexed", and the
  // like.
  Status BreakUnless(const Status& change, const std::string& stored);
  // Return the input for a block of the table; kNotFound.
  [[nodiscard]] Result<index::BlockInput> InputWith(int64_t block, std::span<const index::BlockTensor> tensors) const;
  Status LoadBlocks();
  // Build these parts, which take only token ids, over every block of the table, with the statistics. They come from
  // what is saved, and from the token ids of the blocks that it lacks. A block that is gone meanwhile leaves the table.
  Status LoadTokenIds(std::span<const index::IndexPart> parts, const StoredBlocks& stored);
  // Make a part of what is saved of its kind, or an empty one. A reader looks again where its writer may have changed
  // the files meanwhile.
  [[nodiscard]] Result<std::unique_ptr<index::Part>> MakeOfSaved(const index::PartKind& kind, const Make& make);
  // Build a part over every block of the table.
  [[nodiscard]] Result<std::unique_ptr<index::Part>> Build(const index::PartKind& kind, const Make& make);
  Status MakeWhenAsked(index::IndexPart part);
  // Tell the store how much RAM all of this takes, and `more` that it is about to take.
  void TellBytes(int64_t more = 0) const;
  // Take the lock alone, for a moment.
  [[nodiscard]] std::unique_lock<FairSharedMutex> Change() { return std::unique_lock(guard_); }
  // Call visit(kind, part) for every part that is there.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (size_t number = 0; number < slots_.size(); ++number) {
      if (slots_[number].part != nullptr) {
        visit(index::KindOf({static_cast<uint8_t>(number)}), *slots_[number].part);
      }
    }
  }

  // A file of a part that was loaded from it or saved to it.
  struct Segment {
    BlockIds ids;
    int64_t newest = 0;  // block that it had when it was written or loaded; ids may be about later ones
    int64_t bytes = 0;
    // A block was forgotten since, or its tensors came or went: the file has what is gone, or lacks what is there.
    bool is_outdated = false;
  };

  // Return these blocks, as numbers of the table.
  [[nodiscard]] index::BlockRun Numbers(BlockIds ids) const;
  // Return whether the memory has a block of the table, as far as this set knows.
  [[nodiscard]] bool IsHere(const index::BlockEntry& block) const {
    return !block.forgotten && !gone_.contains(block.id);
  }
  // Look which blocks of a reader's table its writer has forgotten since: the files are without them.
  Status LookForGone();
  // Return whether any of them is not forgotten.
  [[nodiscard]] bool HasBlocks(BlockIds ids) const;
  // Return those that are not forgotten, in order of archiving, for an index of these tensors.
  [[nodiscard]] Result<std::vector<CoveredBlock>> CoveredBlocks(BlockIds ids,
                                                                std::span<const std::string> tensors) const;
  // Return the place of a saved part; none for a memory in RAM.
  [[nodiscard]] std::optional<SavedIndex> Saved(std::string_view name, BlockIds ids = {}) const;
  // Return the ids of the files that a part may have, the first before all others; none where it is not saved.
  [[nodiscard]] std::vector<BlockIds> Files(const index::PartKind& kind) const;
  // Return what is known of the file of these ids; the end of segments_ of the part if it is not in use.
  [[nodiscard]] std::vector<Segment>::iterator FindSegment(const index::PartKind& kind, BlockIds ids);
  enum class Loaded : uint8_t {
    kYes,
    kNothing,  // there is nothing to load, or nothing that fits; the part is as it was
    kSpoilt,   // the part must not be used any more
  };
  // Load a file of a part, about blocks behind `loaded`. Add what is wrong with it. An error means that a part from the
  // caller may be whole but cannot be read now: do not replace it.
  [[nodiscard]] Result<Loaded> LoadSegment(const index::PartKind& kind, index::Part& part, BlockIds ids,
                                           std::vector<Segment>& loaded, std::vector<Status>& wrong);
  // Load what is saved of a part into an empty one: at most so many files. kSpoilt tells how many are good. `moved`
  // tells that a file was not where it was listed, or that one is missing among the others.
  [[nodiscard]] Result<Loaded> LoadSaved(const index::PartKind& kind, index::Part& part, size_t& most,
                                         std::vector<Status>& wrong, bool& moved);
  // Write one file of a part.
  Status SaveSegment(const index::PartKind& kind, const index::Part& part, Segment& segment) const;
  // Save what is not in the part's files yet.
  Status SavePart(const index::PartKind& kind, const index::Part& part);
  // Note that a file of a part has another state of a block than the part has now.
  void NoteChanged(std::string_view name, int64_t block);
  // Remove what is forgotten from the files of a part.
  Status RemoveForgotten(index::IndexPart of);
  // Replace saved vectors by those of blocks that are not forgotten. Return false when there are none to keep.
  [[nodiscard]] Result<bool> KeepSaved(const index::PartKind& kind);
  // Save a part from the caller, as SavePart. Return false when nothing in it is of a block that is not forgotten.
  [[nodiscard]] Result<bool> SaveGiven(const index::PartKind& kind, const index::Part& part);
  // Mark every part as different from what is saved.
  void MarkUnsaved();
  // Return the files of a kind whose bytes are damaged, and why. What is merged meanwhile is no damage. kIoError,
  // kCapacity.
  struct DamagedFile {
    BlockIds ids;
    Status why;
  };
  [[nodiscard]] Result<std::vector<DamagedFile>> DamagedOf(const index::PartKind& kind) const;
  [[nodiscard]] static std::vector<BlockIds> IdsOf(std::span<const DamagedFile> damaged);
  void Say(std::string_view name, const Status& why) const;
  // Add a message about a stored tensor that cannot be read.
  void SayDamaged(std::string_view name, const Status& why) const;
  void AddMessage(std::string message) const;

  store::MemoryStore& store_;
  const kv::PayloadLayout& layout_;
  const Payloads& payloads_;
  std::mutex turn_;
  mutable FairSharedMutex guard_;
  index::BlockTable table_;
  index::TokenStatistics statistics_;
  const index::PartContext context_;
  const std::vector<index::IndexPart> parts_;
  std::vector<Slot> slots_;  // by IndexPart::number
  std::set<int64_t> gone_;   // of LookForGone
  Status broken_;
  std::set<std::string, std::less<>> unsaved_;                         // parts that differ from what index/ has of them
  std::map<std::string, std::vector<Segment>, std::less<>> segments_;  // files of the parts that are there

  std::atomic<int64_t> bytes_beside_ = 0;

  mutable std::mutex message_guard_;
  mutable std::vector<std::string> messages_;
};

// What changes a set. Who has one has the turn.
class IndexSet::Writer {
 public:
  // Load again. Parts that their options made are made of these again. Nobody may search meanwhile.
  Status Reload();
  // Return all that the parts there take of a block.
  [[nodiscard]] index::PartNeeds Needs() const;
  // Return the error with which Append would refuse a block.
  [[nodiscard]] Status Check(const index::BlockInput& block) const;
  // Add a block that was stored, with what the parts take of it. It sets `first_page`. An error breaks the set.
  Status Append(const index::NewBlock& block, index::BlockInput input);
  // Forget blocks that left the store, by the token ids that they had; ignore unknown ones. An error breaks the set.
  Status Forget(const std::map<int64_t, std::vector<int32_t>>& token_ids);
  // Give back the numbers of forgotten pages by making the parts anew. In RAM it does so once most pages are forgotten.
  // In a folder it does so once all are: a new part reads payload again, and that may be damaged by now.
  Status GiveBackForgotten();
  // Return whether a block of the table is not in the store any more.
  [[nodiscard]] bool HasBlocksThatAreGone() const;

  // Replace a part by one over every block, taken from what is saved where that fits. The old part stays until then. No
  // `make`: there is no such part.
  Status Replace(index::IndexPart part, const Make& make);
  // Call Part::AddVectors of a part that is there.
  Status AddVectors(index::IndexPart part, int64_t block, std::span<const int32_t> pages,
                    std::span<const float> vectors, std::span<const std::vector<int32_t>> terms);
  // Call BlockTable::SetTags, once the tags are stored.
  void SetTags(int64_t block, std::span<const std::string> tags);
  Status SetRouter(index::IndexPart part, const index::NeuralInvertedIndex::Router& router);

  // Call Part::CheckTensors of every part for tensors of a block in the table; kNotFound for an unknown block.
  [[nodiscard]] Status CheckTensors(int64_t block, std::span<const index::BlockTensor> tensors) const;
  // Call Part::TensorsCame of every part that takes tensors, once they are stored. An error breaks the set.
  Status TensorsCame(int64_t block, std::span<const index::BlockTensor> tensors);
  // Call Part::Forget of every part that took one of these tensors of a block. An error breaks the set.
  Status TensorsWent(int64_t block, std::span<const std::string> names);

  // --- what index/ has: index_set_saved.cc
  // Save what is new. A part with pages of a damaged file is made anew first, with a message.
  Status Save();
  // Remove what is damaged, and make the parts anew that have it. They are saved with the next Save.
  Status RepairSaved();
  // Remove forgotten blocks from index/. What it has of other blocks stays, also of a part that is not there. A part
  // from the caller is written without them in one step, or stays as it was, and the error says so.
  Status RemoveSavedOfForgotten();
  // Copy what index/ has into the folder of a fork.
  void CarrySaved(const FilePath& folder) const;

 private:
  friend class IndexSet;
  explicit Writer(IndexSet& set) : turn_(set.turn_), set_(&set) {}
  // Save what is new of a part that is there.
  Status SavePart(index::IndexPart part);
  // Remove damaged files of a part, and make the part anew, if it is there. It is not saved then. One from the caller
  // is whole.
  Status MakeAnew(index::IndexPart part, std::span<const BlockIds> damaged);

  std::unique_lock<std::mutex> turn_;
  IndexSet* set_;
};

}  // namespace everlong::os
