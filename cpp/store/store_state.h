// What a MemoryStore is made of: a catalog, segments in RAM or in files, and, over files, a RAM tier and threads that
// read. It is what everybody may do at once: reads of what is committed. What changes the catalog or the segments is
// the Writer's (writer.h), who has them to change.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "append_queue.h"
#include "catalog.h"
#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/file_path.h"
#include "everlong/store/memory_store.h"
#include "export_chunks.h"
#include "host_tier.h"
#include "own_files.h"
#include "read_threads.h"
#include "segment_set.h"
#include "writer_lock.h"

namespace everlong::store {

inline constexpr const char* kCatalogFile = "catalog.sqlite";
inline constexpr const char* kSegmentFolder = "segments";
inline constexpr const char* kOwnFileFolder = "files";

// Thread-safe, but for making and unmaking.
class StoreState {
 public:
  struct Rooms {
    std::optional<FilePath> folder;
    bool read_only = false;
    std::optional<WriterLock> lock;
    std::shared_lock<FairSharedMutex> pass;  // of what AsOfNow gave; let go once the catalog is closed
    std::unique_ptr<Catalog> catalog;
    std::unique_ptr<SegmentSet> segments;
    SegmentFiles* files = nullptr;  // the segments, of a memory in a folder
    Manifest manifest;
    StoreOptions options;
    int64_t next_id = 1;
    bool unfinished = false;      // there is no manifest yet
    bool folder_existed = false;  // before this store was made
  };
  // Make a memory without blocks. A folder is a memory only after FinishMaking, which writes its manifest. A store that
  // is destroyed before that removes what it made.
  static Result<std::unique_ptr<StoreState>> MakeUnfinished(const std::optional<std::filesystem::path>& folder,
                                                            const Manifest& manifest, const StoreOptions& options);
  Status FinishMaking();
  explicit StoreState(Rooms rooms);
  // Waits for what was submitted.
  ~StoreState();
  StoreState(const StoreState&) = delete;
  StoreState& operator=(const StoreState&) = delete;

  [[nodiscard]] const std::optional<FilePath>& folder() const { return rooms_.folder; }
  [[nodiscard]] bool read_only() const { return rooms_.read_only; }
  [[nodiscard]] const StoreOptions& options() const { return rooms_.options; }
  [[nodiscard]] const Geometry& geometry() const { return geometry_; }
  [[nodiscard]] const Catalog& catalog() const { return *rooms_.catalog; }
  [[nodiscard]] const SegmentSet& segments() const { return *rooms_.segments; }
  [[nodiscard]] const SegmentFiles* files() const { return rooms_.files; }  // nullptr of a memory in RAM
  [[nodiscard]] HostTier* tier() const { return tier_ ? &*tier_ : nullptr; }
  [[nodiscard]] ReadThreads& threads() const { return *threads_; }
  [[nodiscard]] AppendQueue& queue() const { return *queue_; }  // of a memory that may be written
  [[nodiscard]] OwnFiles& own_files() { return own_files_; }
  [[nodiscard]] const OwnFiles& own_files() const { return own_files_; }

  // --- what was submitted. A holder of the turn, for which the queue waits, must not wait for it.
  // Wait until all of it, or every block up to `id`, is committed or lost.
  void WaitForQueue() const;
  void WaitForBlock(int64_t id) const;
  // Wait for all, or return why some of it is not stored.
  [[nodiscard]] Status WaitForQueued() const;
  Status Flush(std::vector<int64_t>* lost);  // it may throw std::bad_alloc
  Result<int64_t> WaitForSubmitted();        // likewise

  // --- RAM and the right to write
  [[nodiscard]] Status CheckWritable() const;
  // Check that a memory in RAM may hold `more` bytes beside all that it holds. kCapacity.
  [[nodiscard]] Status CheckRoom(int64_t more) const;
  // Return what a memory holds in RAM besides its indexes.
  [[nodiscard]] Result<int64_t> HostBytes() const;
  [[nodiscard]] int64_t index_bytes() const { return index_bytes_; }
  void SetIndexBytes(int64_t bytes);
  void KeepReserve() const;

  // --- files that change as a whole, with no turn
  [[nodiscard]] Manifest manifest() const;
  Status SetAttribute(const std::string& key, const std::string& value);
  [[nodiscard]] Status WriteManifestNow() const;
  Status PutFile(const std::string& name, std::span<const std::byte> bytes);

  // Return this memory in a folder as it is now, for a pass over all of it that keeps nobody waiting but Compact. Null
  // where there is no such thing: in RAM, and for a reader, whose transaction would keep the writer's log.
  [[nodiscard]] Result<std::unique_ptr<const StoreState>> AsOfNow() const;
  [[nodiscard]] FairSharedMutex& passes() { return passes_; }

  // --- reads of committed blocks, which wait for nothing queued
  [[nodiscard]] std::unique_ptr<PendingReads> StartReadCommitted(std::span<const PageRead> reads) const;
  [[nodiscard]] Result<std::vector<TensorRow>> TensorRows(int64_t block) const;
  [[nodiscard]] Result<Tensor> CommittedTensor(int64_t block, const std::string& name) const;
  [[nodiscard]] Result<std::vector<Tensor>> CommittedTensors(int64_t block) const;
  [[nodiscard]] Result<std::vector<std::byte>> ReadRecordPayload(const PageRow& row, const std::string& name) const;
  // Read all of a block, so that it could be appended.
  [[nodiscard]] Result<OwnedDraft> ReadBlock(const BlockInfo& info) const;
  // Write all of it. A writer beside it must not give back bytes that its catalog names.
  Status Export(ExportWriter& file) const;
  // Read parts of one page into `out` and check their CRC. They go into the RAM tier too, unless a block was forgotten
  // since `erasures`, which is from before the row was looked up.
  [[nodiscard]] Status ReadParts(const PageRead& read, const PageRow& row, int64_t erasures) const;
  // Return how often the RAM tier erased something.
  [[nodiscard]] int64_t Erasures() const { return tier_ ? tier_->erasures() : 0; }

 private:
  friend class Writer;

  [[nodiscard]] Result<PlacedTensor> PlaceOf(int64_t block, const std::string& name) const;
  [[nodiscard]] Result<Tensor> TensorAt(int64_t block, PlacedTensor place) const;
  // Note that the ids of blocks that were lost were given, so that no other block gets them.
  void ReserveLostIds();

  mutable Rooms rooms_;      // all but the manifest is fixed
  const Geometry geometry_;  // the manifest's, which never changes
  OwnFiles own_files_;
  std::mutex turn_;                 // of the one that changes segments and catalog
  mutable FairSharedMutex passes_;  // shared by those of AsOfNow; Compact's alone. It is taken before the turn
  mutable std::mutex manifest_mutex_;
  std::atomic<int64_t> index_bytes_ = 0;
  mutable std::optional<HostTier> tier_;  // over files, if it may hold anything
  const std::shared_ptr<ReadThreads> threads_ = ReadThreads::OfProcess();
  // It is last, so that it is destroyed first: queued blocks are committed while all else is there.
  std::atomic<bool> ids_were_lost_ = false;   // of blocks that were not stored; no catalog says so yet
  mutable std::optional<AppendQueue> queue_;  // of a memory that may be written
};

// Return a failure with "<context>: " before its message.
inline Status Under(const std::string& context, const Status& status) {
  return status.ok() ? status : Status(status.code(), context + ": " + status.message());
}

}  // namespace everlong::store
