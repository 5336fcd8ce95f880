// The check of a whole memory, and its repair.
#include <algorithm>
#include <set>
#include <utility>

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

// One check. Call its steps in this order, under the store's write_mutex_. A step returns what the system refused;
// damage goes into the report.
class Scrub {
 public:
  explicit Scrub(Store& store) : store_(store), rooms_(store.rooms_) {}

  Status CheckManifest();
  Status CheckCatalog();
  Status CheckRecords();
  Status CheckGraph();
  // Drop what is damaged. Return the report.
  Result<VerifyReport> Finish(bool repair);

 private:
  // A writer beside this reader may forget a block while it is checked.
  [[nodiscard]] bool IsGone(int64_t block) const {
    return rooms_.read_only && rooms_.catalog->Block(block).status().code() == StatusCode::kNotFound;
  }
  // Note damage to a block. Any other failure is returned, unless the block is gone.
  Status Note(int64_t block, const Status& failure);
  Status CheckRecord(const RecordRow& record);
  [[nodiscard]] Status CheckTensors(const RecordRow& record, std::span<const std::byte> payload) const;

  Store& store_;
  Store::Rooms& rooms_;
  VerifyReport report_;
  bool manifest_is_damaged_ = false;
  bool tables_are_damaged_ = false;
  std::vector<RecordRow> records_;
  std::vector<RecordRow> lost_;  // of tensors, which a block can do without
  std::set<int64_t> damaged_;    // blocks
  GraphChange lost_graph_;
};

Status Scrub::CheckManifest() {
  if (!rooms_.folder) return OkStatus();
  rooms_.files->Reopen();
  const Status read = ReadManifest(*rooms_.folder).status();
  if (read.ok()) return OkStatus();
  if (!IsDamage(read) && read.code() != StatusCode::kNotFound) return read;
  report_.damage.push_back({0, read.message()});
  manifest_is_damaged_ = true;
  return OkStatus();
}

Status Scrub::Note(int64_t block, const Status& failure) {
  const bool gone = IsGone(block);
  if (!IsDamage(failure) && !gone) return failure;
  if (!gone) report_.damage.push_back({block, failure.message()});
  return OkStatus();
}

Status Scrub::CheckCatalog() {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> complaints, rooms_.catalog->file().CheckIntegrity());
  for (const std::string& complaint : complaints) report_.damage.push_back({0, "catalog: " + complaint});
  tables_are_damaged_ = !complaints.empty();
  EVERLONG_ASSIGN_OR_RETURN(records_, rooms_.catalog->Records(&report_.damage, &lost_));
  for (const Damage& damage : report_.damage) damaged_.insert(damage.block);
  std::vector<Damage> told;  // by Records already
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, rooms_.catalog->Blocks({}, &told));
  report_.blocks = std::ssize(blocks);
  for (const BlockInfo& block : blocks) {
    const Status ids = rooms_.catalog->TokenIds(block.id).status();
    if (ids.ok()) continue;
    EVERLONG_RETURN_IF_ERROR(Note(block.id, ids));
    damaged_.insert(block.id);
  }
  for (const RecordRow& record : lost_) {
    EVERLONG_RETURN_IF_ERROR(Note(record.block, CorruptError("the row of " + NameOf(record) + " is damaged")));
  }
  return OkStatus();
}

Status Scrub::CheckRecords() {
  for (const RecordRow& record : records_) {
    Status status = CheckRecord(record);
    if (!status.ok() && rooms_.read_only && record.kind != PayloadKind::kKv) {
      // A writer beside this reader may have replaced the block's tensors.
      const Result<PageRow> now = rooms_.catalog->FindRecord(record.block, record.kind);
      if (now.ok() && *now != record.row) status = CheckRecord({record.block, record.kind, record.page, *now});
    }
    if (status.ok()) continue;
    EVERLONG_RETURN_IF_ERROR(Note(record.block, status));
    if (record.kind == PayloadKind::kKv) {
      damaged_.insert(record.block);
    } else {
      lost_.push_back(record);
    }
  }
  return OkStatus();
}

Status Scrub::CheckGraph() {
  EVERLONG_ASSIGN_OR_RETURN(const Graph graph, rooms_.catalog->graph().ReadAll(&report_.damage, &lost_graph_));
  report_.nodes = std::ssize(graph.nodes);
  report_.edges = std::ssize(graph.edges);
  return OkStatus();
}

Result<VerifyReport> Scrub::Finish(bool repair) {
  if (!repair || report_.damage.empty()) return std::move(report_);
  // If the folder is gone, every record is missing.
  EVERLONG_RETURN_IF_ERROR(store_.CheckWritable());
  damaged_.erase(0);
  report_.dropped.assign(damaged_.begin(), damaged_.end());
  const Status dropped = rooms_.catalog->Drop(report_.dropped, lost_, lost_graph_);  // it may fail after its commit
  if (store_.tier_) store_.tier_->Erase(report_.dropped);
  if (manifest_is_damaged_) EVERLONG_RETURN_IF_ERROR(store_.WriteManifestNow());
  EVERLONG_RETURN_IF_ERROR(dropped);
  if (!tables_are_damaged_) return std::move(report_);
  // No statement may reach a row whose bytes are damaged.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> left, rooms_.catalog->file().CheckIntegrity());
  if (left.empty()) return std::move(report_);
  return CorruptError("the catalog is damaged where no repair reaches: " + left[0] +
                      "; what can be read of it is still there");
}

Status Scrub::CheckRecord(const RecordRow& record) {
  const PageRow& row = record.row;
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  const std::string name = NameOf(record);
  if (record.kind == PayloadKind::kKv && parts != store_.geometry_.layers) {
    return CorruptError(name + " has " + std::to_string(parts) + " parts");
  }
  std::vector<std::byte> encoded(static_cast<size_t>(RecordHeaderBytes(parts)));
  EVERLONG_RETURN_IF_ERROR(Under(name, rooms_.segments->Read({row.segment, row.offset}, encoded)));
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
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> payload, store_.ReadRecordPayload(row, name));
  // A record of a kind that a later version added is kept: its checksum is all that is known of it.
  if (std::ranges::find(kTensorKinds, record.kind) != kTensorKinds.end()) {
    EVERLONG_RETURN_IF_ERROR(CheckTensors(record, payload));
  }
  ++report_.records;
  report_.bytes += std::ssize(payload);
  return OkStatus();
}

Status Scrub::CheckTensors(const RecordRow& record, std::span<const std::byte> payload) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<TensorRow> held, TensorRowsOf(record.kind, payload));
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> rows, store_.TensorRows(record.block));
  std::erase_if(rows, [&record](const TensorRow& row) { return row.record != record.kind; });
  if (rows == held) return OkStatus();
  return CorruptError("block " + std::to_string(record.block) + ": its tensors are not those that the catalog names");
}

Result<VerifyReport> Store::Verify(bool repair) {
  return OrOutOfMemory([&]() -> Result<VerifyReport> {
    if (repair) EVERLONG_RETURN_IF_ERROR(CheckWritable());
    if (queue_) queue_->Wait();
    const std::scoped_lock lock(write_mutex_);
    Scrub scrub(*this);
    EVERLONG_RETURN_IF_ERROR(scrub.CheckManifest());
    EVERLONG_RETURN_IF_ERROR(scrub.CheckCatalog());
    EVERLONG_RETURN_IF_ERROR(scrub.CheckRecords());
    EVERLONG_RETURN_IF_ERROR(scrub.CheckGraph());
    return scrub.Finish(repair);
  });
}

}  // namespace everlong::store
