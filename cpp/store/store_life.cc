// The life of a memory: forgetting, compacting, branching.
#include <algorithm>
#include <utility>

#include "everlong/base/file.h"
#include "record.h"
#include "reserve.h"
#include "store.h"

namespace everlong::store {
LiveRanges LiveRangesOf(std::span<const RecordRow> records) {
  LiveRanges live;
  for (const RecordRow& record : records) {
    const PageRow& row = record.row;
    const int64_t bytes = RecordBytes(static_cast<int64_t>(row.part_crcs.size()), row.part_bytes);
    live[row.segment].push_back({row.offset, row.offset + bytes});
  }
  for (auto& [segment, ranges] : live) {
    std::sort(ranges.begin(), ranges.end(), [](ByteRange a, ByteRange b) { return a.begin < b.begin; });
  }
  return live;
}

Status Store::Forget(std::span<const int64_t> blocks, const GraphChange& change) {
  EVERLONG_RETURN_IF_ERROR(CheckWritable());
  EVERLONG_RETURN_IF_ERROR(ValidateChange(change, false));
  queue_->Wait();
  const std::scoped_lock lock(write_mutex_);
  EVERLONG_RETURN_IF_ERROR(rooms_.catalog->Forget(blocks, change));
  if (tier_) tier_->Erase(blocks);
  if (rooms_.folder) return OkStatus();
  // In RAM, forgotten blocks go at once. That costs as much as their size, not as much as all that is there.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRow> rows, rooms_.catalog->TakeOut(blocks));
  for (const PageRow& row : rows) rooms_.segments->Free({row.segment, row.offset});
  return OkStatus();
}

Result<int64_t> Store::Compact() {
  EVERLONG_RETURN_IF_ERROR(CheckWritable());
  queue_->Wait();
  const std::scoped_lock lock(write_mutex_);
  return CompactLocked();
}

Result<int64_t> Store::KeepLivePayload() {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RecordRow> records, rooms_.catalog->Records());
  return rooms_.segments->KeepOnly(LiveRangesOf(records));
}

Result<int64_t> Store::MakeRoom() {
  EVERLONG_RETURN_IF_ERROR(CheckWritable());
  if (!rooms_.folder) return 0;
  queue_->Wait();
  const std::scoped_lock lock(write_mutex_);
  ReleaseReserve(*rooms_.folder);
  const Result<int64_t> freed = KeepLivePayload();
  // The log holds some pages several times. A reader may keep it.
  static_cast<void>(rooms_.catalog->file().EmptyLog());
  // A segment that a fork shares is copied, which a full disk refuses. The rest was given back.
  return freed.status().code() == StatusCode::kIoError ? 0 : freed;
}

void Store::KeepReserve() {
  if (rooms_.folder && CheckWritable().ok()) store::KeepReserve(*rooms_.folder);
}

Result<int64_t> Store::CompactLocked() {
  // Payload goes first: its room lets a full disk take the change of the catalog. A forgotten block is never read, so a
  // crash in between, which leaves its rows, loses nothing.
  const Result<int64_t> freed = KeepLivePayload();
  if (!freed.ok() && freed.status().code() != StatusCode::kIoError) return freed;
  Status dropped = rooms_.catalog->DropForgotten();
  if (dropped.code() == StatusCode::kIoError && rooms_.folder) {
    ReleaseReserve(*rooms_.folder);
    dropped = rooms_.catalog->DropForgotten();
  }
  EVERLONG_RETURN_IF_ERROR(dropped);
  const Status rewritten = rooms_.catalog->file().Rewrite();
  const Status cleaned = own_files_.RemoveLeftovers();
  KeepReserve();
  EVERLONG_RETURN_IF_ERROR(rewritten);
  EVERLONG_RETURN_IF_ERROR(cleaned);
  return freed;
}

// For a memory in RAM: write every block anew.
Status Store::CopyInto(Store& target) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, Blocks({}));
  for (const BlockInfo& info : blocks) {
    EVERLONG_ASSIGN_OR_RETURN(const OwnedDraft block, ReadBlock(info));
    EVERLONG_RETURN_IF_ERROR(target.Restore({&block, 1}));
  }
  EVERLONG_ASSIGN_OR_RETURN(Graph graph, ReadGraph());
  EVERLONG_RETURN_IF_ERROR(target.RestoreGraph(std::move(graph)));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t next, rooms_.catalog->NextBlockId());
  return target.ReserveIdsBelow(next);
}

// For a memory in a folder: clone its files.
Status Store::CloneInto(Store& target) {
  const FilePath& folder = *target.rooms_.folder;
  target.rooms_.catalog.reset();
  EVERLONG_RETURN_IF_ERROR(CatalogFile::Remove(folder / kCatalogFile));
  const std::scoped_lock lock(write_mutex_);
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd hold, rooms_.files->HoldRemovals());
  EVERLONG_RETURN_IF_ERROR(rooms_.catalog->file().Snapshot(folder / kCatalogFile));
  EVERLONG_ASSIGN_OR_RETURN(target.rooms_.catalog, Catalog::Over(CatalogFile::Open(folder / kCatalogFile, false),
                                                                 *target.rooms_.options.host_bytes));
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RecordRow> records, target.rooms_.catalog->Records());
  if (!rooms_.read_only) rooms_.files->Seal();
  EVERLONG_RETURN_IF_ERROR(rooms_.files->CloneInto(folder / kSegmentFolder, LiveRangesOf(records), !rooms_.read_only));
  EVERLONG_RETURN_IF_ERROR(target.MigrateCatalog());  // a reader forks a memory that may be of an older format
  return SyncFolder(folder);
}

Status Store::WaitForQueued() const {
  if (!queue_) return OkStatus();
  queue_->Wait();
  return queue_->failure();
}

Status Store::Fork(const std::filesystem::path& folder, const std::function<void(const FilePath& folder)>& adds) {
  EVERLONG_RETURN_IF_ERROR(WaitForQueued());
  StoreOptions options = rooms_.options;
  options.host_bytes = 0;  // this store of the fork only writes; what it kept in RAM would be there twice
  Manifest described = manifest();
  described.format_version = kFormatVersion;
  EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<Store> fork, MakeUnfinished(folder, described, options));
  EVERLONG_RETURN_IF_ERROR(rooms_.folder ? CloneInto(*fork) : CopyInto(*fork));
  EVERLONG_RETURN_IF_ERROR(own_files_.CopyInto(fork->own_files_));
  EVERLONG_RETURN_IF_ERROR(fork->FinishMaking());
  if (adds) adds(*fork->rooms_.folder);  // the fork's lock is held still
  return OkStatus();
}

}  // namespace everlong::store
