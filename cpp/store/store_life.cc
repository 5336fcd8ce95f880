// The life of a memory: forgetting, compacting, branching.
#include <algorithm>
#include <utility>

#include "everlong/base/file.h"
#include "record.h"
#include "reserve.h"
#include "writer.h"

namespace everlong::store {
namespace {

// Return the places of the records, in order, for SegmentSet::KeepOnly.
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

}  // namespace

Status MemoryStore::Forget(std::span<const int64_t> blocks, const GraphChange& change) {
  EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
  EVERLONG_RETURN_IF_ERROR(ValidateChange(change, false));
  state_->WaitForQueue();
  return Writer(*state_).Forget(blocks, change);
}

Status Writer::Forget(std::span<const int64_t> blocks, const GraphChange& change) {
  EVERLONG_RETURN_IF_ERROR(catalog().Forget(blocks, change));
  if (HostTier* const tier = state_.tier()) tier->Erase(blocks);
  if (state_.folder()) return OkStatus();
  // In RAM, forgotten blocks go at once. That costs as much as their size, not as much as all that is there.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRow> rows, catalog().TakeOut(blocks));
  FreeInRam(rows);
  return OkStatus();
}

void Writer::FreeInRam(std::span<const PageRow> records) {
  if (state_.folder()) return;
  for (const PageRow& row : records) segments().Free({row.segment, row.offset});
}

void MemoryStore::WaitForPasses() { const std::unique_lock alone(state_->passes()); }

Result<int64_t> MemoryStore::Compact() {
  EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
  state_->WaitForQueue();
  const std::unique_lock alone(state_->passes());
  return Writer(*state_).Compact();
}

Result<int64_t> Writer::KeepLivePayload() {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RecordRow> records, catalog().Records());
  return segments().KeepOnly(LiveRangesOf(records));
}

Result<int64_t> MemoryStore::MakeRoom() {
  EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
  if (!state_->folder()) return 0;
  state_->WaitForQueue();
  const std::unique_lock alone(state_->passes());
  return Writer(*state_).MakeRoom();
}

Result<int64_t> Writer::MakeRoom() {
  ReleaseReserve(*state_.folder());
  const Result<int64_t> freed = KeepLivePayload();
  // The log holds some pages several times. A reader may keep it.
  static_cast<void>(catalog().file().EmptyLog());
  // A segment that a fork shares is copied, which a full disk refuses. The rest was given back.
  return freed.status().code() == StatusCode::kIoError ? 0 : freed;
}

void StoreState::KeepReserve() const {
  if (folder() && CheckWritable().ok()) store::KeepReserve(*folder());
}

Result<int64_t> Writer::Compact() {
  // Payload goes first: its room lets a full disk take the change of the catalog. A forgotten block is never read, so a
  // crash in between, which leaves its rows, loses nothing.
  const Result<int64_t> freed = KeepLivePayload();
  if (!freed.ok() && freed.status().code() != StatusCode::kIoError) return freed;
  Status dropped = catalog().DropForgotten();
  if (dropped.code() == StatusCode::kIoError && state_.folder()) {
    ReleaseReserve(*state_.folder());
    dropped = catalog().DropForgotten();
  }
  EVERLONG_RETURN_IF_ERROR(dropped);
  const Status rewritten = catalog().file().Rewrite();
  const Status cleaned = state_.own_files().RemoveLeftovers();
  state_.KeepReserve();
  EVERLONG_RETURN_IF_ERROR(rewritten);
  EVERLONG_RETURN_IF_ERROR(cleaned);
  return freed;
}

Status Writer::CopyInto(Writer& target) {
  if (state_.folder()) return CloneFilesInto(target);
  // Of a memory in RAM every block is written anew.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, catalog().Blocks({}));
  for (const BlockInfo& info : blocks) {
    EVERLONG_ASSIGN_OR_RETURN(const OwnedDraft block, state_.ReadBlock(info));
    EVERLONG_RETURN_IF_ERROR(target.Restore({&block, 1}));
  }
  EVERLONG_ASSIGN_OR_RETURN(Graph graph, catalog().graph().ReadAll());
  EVERLONG_RETURN_IF_ERROR(target.RestoreGraph(std::move(graph)));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t next, catalog().NextBlockId());
  return target.ReserveIdsBelow(next);
}

Status Writer::CloneFilesInto(Writer& target) {
  StoreState::Rooms& made = target.state_.rooms_;
  const FilePath& folder = *made.folder;
  made.catalog.reset();
  EVERLONG_RETURN_IF_ERROR(CatalogFile::Remove(folder / kCatalogFile));
  SegmentFiles& files = *state_.rooms_.files;
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd hold, files.HoldRemovals());
  EVERLONG_RETURN_IF_ERROR(catalog().file().Snapshot(folder / kCatalogFile));
  EVERLONG_ASSIGN_OR_RETURN(made.catalog,
                            Catalog::Over(CatalogFile::Open(folder / kCatalogFile, false), *made.options.host_bytes));
  // A writer knows them, and has the turn. Beside a reader another process may have committed since.
  const Catalog& counted = state_.read_only() ? *made.catalog : catalog();
  EVERLONG_ASSIGN_OR_RETURN(const CatalogTotals totals, counted.Totals());
  std::vector<int64_t> segments;
  for (const auto& [segment, amount] : totals.records) segments.push_back(segment);
  if (!state_.read_only()) files.Seal();
  EVERLONG_RETURN_IF_ERROR(files.CloneInto(folder / kSegmentFolder, segments, !state_.read_only()));
  EVERLONG_RETURN_IF_ERROR(target.MigrateCatalog());  // a reader forks a memory that may be of an older format
  return SyncFolder(folder);
}

Result<std::unique_ptr<const StoreState>> StoreState::AsOfNow() const {
  if (rooms_.files == nullptr || rooms_.read_only) return std::unique_ptr<const StoreState>();
  Rooms rooms;
  rooms.pass = std::shared_lock(passes_);
  rooms.folder = rooms_.folder;
  rooms.read_only = true;
  EVERLONG_ASSIGN_OR_RETURN(rooms.catalog, Catalog::Over(rooms_.catalog->file().AsOfNow(), *rooms_.options.host_bytes));
  auto segments = std::make_unique<SegmentFiles>(*rooms_.folder / kSegmentFolder);
  rooms.files = segments.get();
  rooms.segments = std::move(segments);
  rooms.manifest = manifest();
  rooms.options = rooms_.options;
  rooms.options.host_bytes = 0;
  return std::make_unique<const StoreState>(std::move(rooms));
}

void StoreState::WaitForQueue() const {
  if (queue_) queue_->Wait();
}

void StoreState::WaitForBlock(int64_t id) const {
  if (queue_) queue_->WaitFor(id);
}

Status StoreState::WaitForQueued() const {
  WaitForQueue();
  return queue_ ? queue_->failure() : OkStatus();
}

Status MemoryStore::Fork(const std::filesystem::path& folder, const std::function<void(const FilePath& folder)>& adds) {
  EVERLONG_RETURN_IF_ERROR(state_->WaitForQueued());
  StoreOptions options = state_->options();
  options.host_bytes = 0;  // this store of the fork only writes; what it kept in RAM would be there twice
  Manifest described = manifest();
  described.format_version = kFormatVersion;
  EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<StoreState> fork,
                            StoreState::MakeUnfinished(folder, described, options));
  {
    Writer from(*state_);
    Writer to(*fork);
    EVERLONG_RETURN_IF_ERROR(from.CopyInto(to));
  }
  EVERLONG_RETURN_IF_ERROR(state_->own_files().CopyInto(fork->own_files()));
  EVERLONG_RETURN_IF_ERROR(fork->FinishMaking());
  if (adds) adds(*fork->folder());  // the fork's lock is held still
  return OkStatus();
}

}  // namespace everlong::store
