// The implementation of MemoryStore: a catalog, segments in RAM or in files, and, over files, a RAM tier and threads
// that read. Its methods are in store_*.cc, migration.cc, export.cc and import.cc.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "append_queue.h"
#include "catalog.h"
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

class Store final : public MemoryStore {
 public:
  struct Rooms {
    std::optional<FilePath> folder;
    bool read_only = false;
    std::optional<WriterLock> lock;
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
  static Result<std::unique_ptr<Store>> MakeUnfinished(const std::optional<std::filesystem::path>& folder,
                                                       const Manifest& manifest, const StoreOptions& options);
  Status FinishMaking();
  explicit Store(Rooms rooms);
  ~Store() override;

  Result<int64_t> Submit(const BlockDraft& draft) override;
  Status Flush(std::vector<int64_t>* lost) override;
  Status PutTensors(int64_t block, std::span<const TensorView> tensors) override;
  Status DropTensors(int64_t block, std::span<const std::string> names) override;
  Status ReplacePages(int64_t block, std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
                      std::span<const std::string> tags) override;
  Status ChangeGraph(const GraphChange& change) override;
  Status AddTags(int64_t block, std::span<const std::string> tags) override;
  Status SetTags(int64_t block, std::span<const std::string> tags) override;
  Status SetAttribute(const std::string& key, const std::string& value) override;
  Status PutFile(const std::string& name, std::span<const std::byte> bytes) override;
  void SetIndexBytes(int64_t bytes) override;
  // Restore blocks of another memory, which keep their ids. Durable on return; all or an error.
  Status Restore(std::span<const OwnedDraft> blocks);

  [[nodiscard]] Result<std::vector<BlockInfo>> Blocks(const BlockFilter& filter) const override;
  [[nodiscard]] Status VisitBlocks(const BlockFilter& filter, const BlockVisitor& visit) const override;
  [[nodiscard]] Result<BlockInfo> Block(int64_t id) const override;
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t block) const override;
  [[nodiscard]] Result<std::vector<TensorInfo>> Tensors(int64_t block) const override;
  [[nodiscard]] Result<Tensor> ReadTensor(int64_t block, const std::string& name) const override;
  [[nodiscard]] Result<Graph> ReadGraph() const override;
  [[nodiscard]] Result<GraphNode> Node(int64_t id) const override;
  [[nodiscard]] Result<std::vector<GraphNode>> Nodes(NodeKind kind) const override;
  [[nodiscard]] Result<std::vector<int64_t>> NodeIds(NodeKind kind) const override;
  [[nodiscard]] Result<std::vector<GraphEdge>> EdgesOf(int64_t node) const override;
  [[nodiscard]] Result<std::vector<int64_t>> PageBytes(int64_t block) const override;
  [[nodiscard]] Status ReadPages(std::span<const PageRead> reads) const override;
  [[nodiscard]] std::unique_ptr<PendingReads> StartReadPages(std::span<const PageRead> reads) const override;
  [[nodiscard]] Result<std::vector<std::byte>> File(const std::string& name) const override;
  [[nodiscard]] Result<int64_t> Forgettings() const override { return rooms_.catalog->Forgettings(); }
  [[nodiscard]] Manifest manifest() const override;
  [[nodiscard]] Result<StoreStats> Stats() const override;
  [[nodiscard]] std::optional<FilePath> folder() const override { return rooms_.folder; }
  [[nodiscard]] bool read_only() const override { return rooms_.read_only; }
  [[nodiscard]] Status CheckWritable() const override;

  using MemoryStore::Forget;
  Status Forget(std::span<const int64_t> blocks, const GraphChange& change) override;
  Result<int64_t> Compact() override;
  Result<int64_t> MakeRoom() override;
  void KeepReserve() override;
  Result<VerifyReport> Verify(bool repair) override;
  Status Fork(const std::filesystem::path& folder, const std::function<void(const FilePath& folder)>& adds) override;
  Status Export(const std::filesystem::path& file) override;

  // Read all of a committed block, so that it could be appended.
  [[nodiscard]] Result<OwnedDraft> ReadBlock(const BlockInfo& info) const;
  // Store the nodes and edges of `graph` that name no block missing here, in one commit.
  Status RestoreGraph(Graph graph);
  // Bring an older format to this one: the catalog in one commit, then the manifest.
  Status Migrate();
  // Remove what a crash left of own files that were being replaced.
  Status RemoveLeftovers() { return own_files_.RemoveLeftovers(); }
  // Give no id below `next` from now on.
  Status ReserveIdsBelow(int64_t next);

  // Read parts of one page into `out` and check their CRC. They go into the RAM tier too, unless a block was forgotten
  // since `erasures`, which is from before the row was looked up.
  [[nodiscard]] Status ReadParts(const PageRead& read, const PageRow& row, int64_t erasures) const;

 private:
  friend class PageReads;
  friend class Scrub;

  // It may throw std::bad_alloc.
  Status TryFlush(std::vector<int64_t>* lost);
  // Wait for what was submitted, or return why some of it is not stored.
  [[nodiscard]] Status WaitForQueued() const;
  Status WriteAll(ExportWriter& writer);
  // Note that the ids of blocks that were lost were given, so that no other block gets them.
  void ReserveLostIds();

  // Read only committed blocks. It waits for nothing queued, so a holder of write_mutex_, for which the queue waits,
  // may call it.
  [[nodiscard]] std::unique_ptr<PendingReads> StartReadCommitted(std::span<const PageRead> reads) const;
  [[nodiscard]] Result<std::vector<TensorRow>> TensorRows(int64_t block) const;
  [[nodiscard]] Result<Tensor> CommittedTensor(int64_t block, const std::string& name) const;
  [[nodiscard]] Result<std::vector<Tensor>> CommittedTensors(int64_t block) const;
  [[nodiscard]] Result<PlacedTensor> PlaceOf(int64_t block, const std::string& name) const;
  // Give a block these tensors, beside those that it has under names which are in neither argument.
  Status ChangeTensors(int64_t block, std::span<const TensorView> put, std::span<const std::string> dropped);
  Status MigrateCatalog();
  [[nodiscard]] int64_t Erasures() const { return tier_ ? tier_->erasures() : 0; }
  // Check that a memory in RAM may hold `more` bytes beside all that it holds. kCapacity.
  [[nodiscard]] Status CheckRoom(int64_t more) const;
  // Return what a memory holds in RAM besides its indexes.
  [[nodiscard]] Result<int64_t> HostBytes() const;
  size_t Commit(std::span<const OwnedDraft> blocks, Status& failure);
  // Write the block's records and note where they lie. Call it under write_mutex_.
  Status WriteRecords(NewBlock& block);
  // Store blocks and return how many: a prefix. Call it under write_mutex_.
  size_t StoreBlocks(std::span<NewBlock> blocks, Status& failure);
  Result<int64_t> CompactLocked();
  // Remove all bytes of segments that no block has which is there. Call it under write_mutex_.
  Result<int64_t> KeepLivePayload();
  Status CopyInto(Store& target) const;
  Status CloneInto(Store& target);
  [[nodiscard]] Status WriteManifestNow() const;
  [[nodiscard]] Result<std::vector<std::byte>> ReadRecordPayload(const PageRow& row, const std::string& name) const;
  [[nodiscard]] Result<int64_t> DiskBytes() const;

  mutable Rooms rooms_;      // all but the manifest is fixed
  const Geometry geometry_;  // the manifest's, which never changes
  OwnFiles own_files_;
  std::mutex write_mutex_;  // one change of segments and catalog at a time
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

// Return the places of the records, in order, for SegmentSet::KeepOnly.
LiveRanges LiveRangesOf(std::span<const RecordRow> records);

}  // namespace everlong::store
