// The life of a memory: forgetting, compacting, scrubbing, branching.
#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "everlong/base/file.h"
#include "everlong/base/out_of_memory.h"
#include "manifest_file.h"
#include "record.h"
#include "store.h"

namespace everlong::store {
namespace {

std::string NameOf(const RecordRow& record) {
  std::string name = "block " + std::to_string(record.block);
  if (record.kind == PayloadKind::kKv) return name.append(" page ").append(std::to_string(record.page));
  return name.append(" kind ").append(std::to_string(static_cast<uint32_t>(record.kind)));
}

// Only what was read and is wrong is damage. A system may refuse to read (no right, no descriptor, no network, no
// memory). That says nothing about the bytes, which may be whole the next time.
bool IsDamage(const Status& status) { return status.code() == StatusCode::kCorrupt; }

}  // namespace

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

Result<int64_t> Store::CompactLocked() {
  // Rows go first. Bytes that no row names mean nothing, so a crash in between loses nothing.
  EVERLONG_RETURN_IF_ERROR(rooms_.catalog->DropForgotten());
  // That is committed. Whatever fails from here on, the bytes of those rows go too.
  const Status rewritten = rooms_.catalog->Rewrite();
  const Status cleaned = own_files_.RemoveLeftovers();
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RecordRow> records, rooms_.catalog->Records());
  EVERLONG_ASSIGN_OR_RETURN(const int64_t freed, rooms_.segments->KeepOnly(LiveRangesOf(records)));
  EVERLONG_RETURN_IF_ERROR(rewritten);
  EVERLONG_RETURN_IF_ERROR(cleaned);
  return freed;
}

Status Store::VerifyRecord(const RecordRow& record, VerifyReport& report) const {
  const PageRow& row = record.row;
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  const std::string name = NameOf(record);
  if (record.kind == PayloadKind::kKv && parts != geometry_.layers) {
    return CorruptError(name + " has " + std::to_string(parts) + " parts");
  }
  std::vector<std::byte> encoded(static_cast<size_t>(RecordHeaderBytes(parts)));
  if (const Status read = rooms_.segments->Read({row.segment, row.offset}, encoded); !read.ok()) {
    return {read.code(), name + ": " + read.message()};
  }
  const Result<RecordHeader> header = DecodeRecordHeader(encoded);
  if (!header.ok()) {
    return CorruptError(name + " in '" + rooms_.segments->Name(row.segment) + "' at byte " +
                        std::to_string(row.offset) + ": " + header.status().message());
  }
  if (header->kind != record.kind || header->block != record.block || header->page != record.page ||
      header->part_bytes != row.part_bytes || header->part_crcs != row.part_crcs) {
    return CorruptError(name + ": '" + rooms_.segments->Name(row.segment) + "' has another record at byte " +
                        std::to_string(row.offset));
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> payload, ReadRecordPayload(row, name));
  // A record of a kind that a later version added is kept: its checksum is all that is known of it.
  if (std::ranges::find(kTensorKinds, record.kind) != kTensorKinds.end()) {
    EVERLONG_RETURN_IF_ERROR(VerifyTensors(record, payload));
  }
  ++report.records;
  report.bytes += std::ssize(payload);
  return OkStatus();
}

Result<VerifyReport> Store::Verify(bool repair) {
  return OrOutOfMemory([&] { return TryVerify(repair); });
}

Result<VerifyReport> Store::TryVerify(bool repair) {
  if (repair) EVERLONG_RETURN_IF_ERROR(CheckWritable());
  if (queue_) queue_->Wait();
  const std::scoped_lock lock(write_mutex_);
  VerifyReport report;
  bool manifest_is_damaged = false;
  if (rooms_.folder) {
    rooms_.files->Reopen();
    if (const Status read = ReadManifest(*rooms_.folder).status(); !read.ok()) {
      if (!IsDamage(read) && read.code() != StatusCode::kNotFound) return read;
      report.damage.push_back({0, read.message()});
      manifest_is_damaged = true;
    }
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> complaints, rooms_.catalog->CheckIntegrity());
  for (const std::string& complaint : complaints) report.damage.push_back({0, "catalog: " + complaint});

  // A writer beside this reader may forget a block while it is checked.
  const auto is_gone = [&](int64_t block) {
    return rooms_.read_only && rooms_.catalog->Block(block).status().code() == StatusCode::kNotFound;
  };
  const auto complain = [&](int64_t block, const std::string& what) {
    if (!is_gone(block)) report.damage.push_back({block, what});
  };
  std::vector<RecordRow> lost;  // of tensors, which a block can do without
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RecordRow> records, rooms_.catalog->Records(&report.damage, &lost));
  std::set<int64_t> damaged;  // blocks with damage
  for (const Damage& damage : report.damage) damaged.insert(damage.block);
  std::vector<Damage> told;  // by Records already
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, rooms_.catalog->Blocks({}, &told));
  for (const BlockInfo& block : blocks) {
    ++report.blocks;
    if (const Status ids = rooms_.catalog->TokenIds(block.id).status(); !ids.ok()) {
      if (!IsDamage(ids) && !is_gone(block.id)) return ids;
      complain(block.id, ids.message());
      damaged.insert(block.id);
    }
  }
  for (const RecordRow& record : lost) complain(record.block, "the row of " + NameOf(record) + " is damaged");
  for (const RecordRow& record : records) {
    Status status = VerifyRecord(record, report);
    if (!status.ok() && rooms_.read_only && record.kind != PayloadKind::kKv) {
      // Or it may replace the block's tensors.
      const Result<PageRow> now = rooms_.catalog->FindRecord(record.block, record.kind);
      if (now.ok() && *now != record.row) status = VerifyRecord({record.block, record.kind, record.page, *now}, report);
    }
    if (status.ok()) continue;
    if (!IsDamage(status) && !is_gone(record.block)) return status;
    complain(record.block, status.message());
    if (record.kind == PayloadKind::kKv) {
      damaged.insert(record.block);
    } else {
      lost.push_back(record);
    }
  }
  GraphChange lost_graph;
  EVERLONG_ASSIGN_OR_RETURN(const Graph graph, rooms_.catalog->ReadGraph(&report.damage, &lost_graph));
  report.nodes = std::ssize(graph.nodes);
  report.edges = std::ssize(graph.edges);
  if (!repair || report.damage.empty()) return report;
  // If the folder is gone, every record is missing.
  EVERLONG_RETURN_IF_ERROR(CheckWritable());
  damaged.erase(0);
  report.dropped.assign(damaged.begin(), damaged.end());
  const Status dropped = rooms_.catalog->Drop(report.dropped, lost, lost_graph);  // it may fail after its commit
  if (tier_) tier_->Erase(report.dropped);
  if (manifest_is_damaged) EVERLONG_RETURN_IF_ERROR(WriteManifestNow());
  EVERLONG_RETURN_IF_ERROR(dropped);
  return report;
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
  EVERLONG_RETURN_IF_ERROR(Catalog::Remove(folder / kCatalogFile));
  const std::scoped_lock lock(write_mutex_);
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd hold, rooms_.files->HoldRemovals());
  EVERLONG_RETURN_IF_ERROR(rooms_.catalog->Snapshot(folder / kCatalogFile));
  EVERLONG_ASSIGN_OR_RETURN(target.rooms_.catalog, Catalog::Open(folder / kCatalogFile, false));
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RecordRow> records, target.rooms_.catalog->Records());
  if (!rooms_.read_only) rooms_.files->Seal();
  EVERLONG_RETURN_IF_ERROR(rooms_.files->CloneInto(folder / kSegmentFolder, LiveRangesOf(records), !rooms_.read_only));
  EVERLONG_RETURN_IF_ERROR(target.MigrateCatalog());  // a reader forks a memory that may be of an older format
  return SyncFolder(folder);
}

Status Store::Fork(const std::filesystem::path& folder, const std::function<void(const FilePath& folder)>& adds) {
  if (queue_) {
    queue_->Wait();
    EVERLONG_RETURN_IF_ERROR(queue_->failure());
  }
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
