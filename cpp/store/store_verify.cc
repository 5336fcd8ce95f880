// The check of a whole memory, and its repair.
#include <algorithm>
#include <set>
#include <utility>

#include "everlong/base/out_of_memory.h"
#include "manifest_file.h"
#include "record.h"
#include "writer.h"

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

// One check. Call its steps in this order. A step returns what the system refused;
// damage goes into the report.
class Scrub {
 public:
  explicit Scrub(Writer& writer) : writer_(writer), state_(writer.state()), catalog_(writer.catalog()) {}

  Status CheckManifest();
  Status CheckCatalog();
  Status CheckRecords();
  Status CheckGraph();
  // Drop what is damaged. Return the report.
  Result<VerifyReport> Finish(bool repair);

 private:
  // A writer beside this reader may forget a block while it is checked.
  [[nodiscard]] bool IsGone(int64_t block) const {
    return state_.read_only() && catalog_.Block(block).status().code() == StatusCode::kNotFound;
  }
  // Note damage to a block. Any other failure is returned, unless the block is gone.
  Status Note(int64_t block, const Status& failure);
  Status CheckRecord(const RecordRow& record);
  [[nodiscard]] Status CheckTensors(const RecordRow& record, std::span<const std::byte> payload) const;

  Writer& writer_;
  const StoreState& state_;
  const Catalog& catalog_;
  VerifyReport report_;
  bool manifest_is_damaged_ = false;
  bool tables_are_damaged_ = false;
  std::vector<RecordRow> records_;
  std::vector<RecordRow> lost_;  // of tensors, which a block can do without
  std::set<int64_t> damaged_;    // blocks
  GraphChange lost_graph_;
};

Status Scrub::CheckManifest() {
  if (!state_.folder()) return OkStatus();
  state_.files()->Reopen();
  const Status read = ReadManifest(*state_.folder()).status();
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
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> complaints, writer_.catalog().file().CheckIntegrity());
  for (const std::string& complaint : complaints) report_.damage.push_back({0, "catalog: " + complaint});
  tables_are_damaged_ = !complaints.empty();
  EVERLONG_ASSIGN_OR_RETURN(records_, catalog_.Records(&report_.damage, &lost_));
  for (const Damage& damage : report_.damage) damaged_.insert(damage.block);
  std::vector<Damage> told;  // by Records already
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, catalog_.Blocks({}, &told));
  report_.blocks = std::ssize(blocks);
  for (const BlockInfo& block : blocks) {
    const Status ids = catalog_.TokenIds(block.id).status();
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
    if (!status.ok() && state_.read_only() && record.kind != PayloadKind::kKv) {
      // A writer beside this reader may have replaced the block's tensors.
      const Result<PageRow> now = catalog_.FindRecord(record.block, record.kind);
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
  EVERLONG_ASSIGN_OR_RETURN(const Graph graph, catalog_.graph().ReadAll(&report_.damage, &lost_graph_));
  report_.nodes = std::ssize(graph.nodes);
  report_.edges = std::ssize(graph.edges);
  return OkStatus();
}

Result<VerifyReport> Scrub::Finish(bool repair) {
  if (!repair || report_.damage.empty()) return std::move(report_);
  // If the folder is gone, every record is missing.
  EVERLONG_RETURN_IF_ERROR(state_.CheckWritable());
  damaged_.erase(0);
  report_.dropped.assign(damaged_.begin(), damaged_.end());
  const Status dropped = writer_.catalog().Drop(report_.dropped, lost_, lost_graph_);  // it may fail after its commit
  if (HostTier* const tier = state_.tier()) tier->Erase(report_.dropped);
  if (manifest_is_damaged_) EVERLONG_RETURN_IF_ERROR(state_.WriteManifestNow());
  EVERLONG_RETURN_IF_ERROR(dropped);
  if (!tables_are_damaged_) return std::move(report_);
  // No statement may reach a row whose bytes are damaged.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> left, writer_.catalog().file().CheckIntegrity());
  if (left.empty()) return std::move(report_);
  return CorruptError("the catalog is damaged where no repair reaches: " + left[0] +
                      "; what can be read of it is still there");
}

Status Scrub::CheckRecord(const RecordRow& record) {
  const PageRow& row = record.row;
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  const std::string name = NameOf(record);
  if (record.kind == PayloadKind::kKv && parts != state_.geometry().layers) {
    return CorruptError(name + " has " + std::to_string(parts) + " parts");
  }
  std::vector<std::byte> encoded(static_cast<size_t>(RecordHeaderBytes(parts)));
  EVERLONG_RETURN_IF_ERROR(Under(name, state_.segments().Read({row.segment, row.offset}, encoded)));
  const Result<RecordHeader> header = DecodeRecordHeader(encoded);
  if (!header.ok()) {
    return CorruptError(name + " in '" + state_.segments().Name(row.segment) + "' at byte " +
                        std::to_string(row.offset) + ": " + header.status().message());
  }
  if (header->kind != record.kind || header->block != record.block || header->page != record.page ||
      header->part_bytes != row.part_bytes || header->part_crcs != row.part_crcs) {
    return CorruptError(name + ": '" + state_.segments().Name(row.segment) + "' has another record at byte " +
                        std::to_string(row.offset));
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> payload, state_.ReadRecordPayload(row, name));
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
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> rows, state_.TensorRows(record.block));
  std::erase_if(rows, [&record](const TensorRow& row) { return row.record != record.kind; });
  if (rows == held) return OkStatus();
  return CorruptError("block " + std::to_string(record.block) + ": its tensors are not those that the catalog names");
}

Result<VerifyReport> MemoryStore::Verify(bool repair) {
  return OrOutOfMemory([&]() -> Result<VerifyReport> {
    if (repair) EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    state_->WaitForQueue();
    return Writer(*state_).Verify(repair);
  });
}

Result<VerifyReport> Writer::Verify(bool repair) {
  Scrub scrub(*this);
  EVERLONG_RETURN_IF_ERROR(scrub.CheckManifest());
  EVERLONG_RETURN_IF_ERROR(scrub.CheckCatalog());
  EVERLONG_RETURN_IF_ERROR(scrub.CheckRecords());
  EVERLONG_RETURN_IF_ERROR(scrub.CheckGraph());
  return scrub.Finish(repair);
}

}  // namespace everlong::store
