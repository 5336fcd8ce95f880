// The check of a whole memory, and its repair.
#include <algorithm>
#include <optional>
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

Status CheckTensors(const StoreState& state, const RecordRow& record, std::span<const std::byte> payload) {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<TensorRow> held, TensorRowsOf(record.kind, payload));
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> rows, state.TensorRows(record.block));
  std::erase_if(rows, [&record](const TensorRow& row) { return row.record != record.kind; });
  if (rows == held) return OkStatus();
  return CorruptError("block " + std::to_string(record.block) + ": its tensors are not those that the catalog names");
}

}  // namespace

// One check. A step returns what the system refused; damage goes into the report.
class Scrub {
 public:
  // Check `seen`: `live` as it was at one moment, or `live` itself. Of what `live` has lost or replaced meanwhile
  // nothing is damage. Of blocks only `suspects` are read, if given.
  Scrub(const StoreState& live, const StoreState& seen, std::optional<std::set<int64_t>> suspects = {})
      : live_(live), seen_(seen), suspects_(std::move(suspects)) {}

  Status Run();

  VerifyReport report;
  bool manifest_is_damaged = false;
  bool tables_are_damaged = false;
  std::vector<RecordRow> lost;  // of tensors, which a block can do without
  std::set<int64_t> damaged;    // blocks; 0 where none can be named
  GraphChange lost_graph;

 private:
  Status CheckManifest();
  Status CheckCatalog();
  Status CheckRecords();
  Status CheckGraph();
  [[nodiscard]] bool IsRead(int64_t block) const { return !suspects_ || suspects_->contains(block); }
  [[nodiscard]] bool IsGone(int64_t block) const {
    return live_.catalog().Block(block).status().code() == StatusCode::kNotFound;
  }
  // Note damage to a block. Any other failure is returned, unless the block is gone.
  Status Note(int64_t block, const Status& failure);
  // Return where the record is now. kNotFound, kCorrupt.
  [[nodiscard]] Result<PageRow> RowNow(const RecordRow& record) const;
  Status CheckRecord(const StoreState& state, const RecordRow& record);

  const StoreState& live_;
  const StoreState& seen_;
  const std::optional<std::set<int64_t>> suspects_;
  std::vector<RecordRow> records_;
};

Status Scrub::Run() {
  EVERLONG_RETURN_IF_ERROR(CheckManifest());
  EVERLONG_RETURN_IF_ERROR(CheckCatalog());
  EVERLONG_RETURN_IF_ERROR(CheckRecords());
  return CheckGraph();
}

Status Scrub::CheckManifest() {
  if (!seen_.folder()) return OkStatus();
  seen_.files()->Reopen();
  const Status read = ReadManifest(*seen_.folder()).status();
  if (read.ok()) return OkStatus();
  if (!IsDamage(read) && read.code() != StatusCode::kNotFound) return read;
  report.damage.push_back({0, read.message()});
  manifest_is_damaged = true;
  return OkStatus();
}

Status Scrub::Note(int64_t block, const Status& failure) {
  const bool gone = IsGone(block);
  if (!IsDamage(failure) && !gone) return failure;
  if (!gone) report.damage.push_back({block, failure.message()});
  return OkStatus();
}

Status Scrub::CheckCatalog() {
  const Catalog& catalog = seen_.catalog();
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> complaints, catalog.CheckIntegrity());
  for (const std::string& complaint : complaints) report.damage.push_back({0, "catalog: " + complaint});
  tables_are_damaged = !complaints.empty();
  EVERLONG_ASSIGN_OR_RETURN(records_, catalog.Records(&report.damage, &lost));
  for (const Damage& damage : report.damage) damaged.insert(damage.block);
  std::vector<Damage> told;  // by Records already
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, catalog.Blocks({}, &told));
  report.blocks = std::ssize(blocks);
  for (const BlockInfo& block : blocks) {
    if (!IsRead(block.id)) continue;
    const Status ids = catalog.TokenIds(block.id).status();
    if (ids.ok()) continue;
    EVERLONG_RETURN_IF_ERROR(Note(block.id, ids));
    damaged.insert(block.id);
  }
  for (const RecordRow& record : lost) {
    EVERLONG_RETURN_IF_ERROR(Note(record.block, CorruptError("the row of " + NameOf(record) + " is damaged")));
  }
  return OkStatus();
}

Result<PageRow> Scrub::RowNow(const RecordRow& record) const {
  if (record.kind != PayloadKind::kKv) return live_.catalog().FindRecord(record.block, record.kind);
  const PageKey page{record.block, record.page};
  live_.catalog().DropKnown();
  EVERLONG_ASSIGN_OR_RETURN(const auto rows, live_.catalog().Locate({&page, 1}));
  return *rows[0];
}

Status Scrub::CheckRecords() {
  for (RecordRow& record : records_) {
    if (!IsRead(record.block)) continue;
    Status status = CheckRecord(seen_, record);
    // It may have been replaced since, and its bytes given back. Then the one in its place is checked.
    while (!status.ok()) {
      const Result<PageRow> now = RowNow(record);
      if (now.status().code() == StatusCode::kNotFound) status = OkStatus();
      if (!now.ok() || *now == record.row) break;
      record.row = *now;
      status = CheckRecord(live_, record);
    }
    if (status.ok()) continue;
    EVERLONG_RETURN_IF_ERROR(Note(record.block, status));
    if (record.kind == PayloadKind::kKv) {
      damaged.insert(record.block);
    } else {
      lost.push_back(record);
    }
  }
  return OkStatus();
}

Status Scrub::CheckGraph() {
  EVERLONG_ASSIGN_OR_RETURN(const Graph graph, seen_.catalog().graph().ReadAll(&report.damage, &lost_graph));
  report.nodes = std::ssize(graph.nodes);
  report.edges = std::ssize(graph.edges);
  return OkStatus();
}

Status Scrub::CheckRecord(const StoreState& state, const RecordRow& record) {
  const PageRow& row = record.row;
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  const std::string name = NameOf(record);
  if (record.kind == PayloadKind::kKv && parts != state.geometry().layers) {
    return CorruptError(name + " has " + std::to_string(parts) + " parts");
  }
  std::vector<std::byte> encoded(static_cast<size_t>(RecordHeaderBytes(parts)));
  EVERLONG_RETURN_IF_ERROR(Under(name, state.segments().Read({row.segment, row.offset}, encoded)));
  const Result<RecordHeader> header = DecodeRecordHeader(encoded);
  if (!header.ok()) {
    return CorruptError(name + " in '" + state.segments().Name(row.segment) + "' at byte " +
                        std::to_string(row.offset) + ": " + header.status().message());
  }
  if (header->kind != record.kind || header->block != record.block || header->page != record.page ||
      header->part_bytes != row.part_bytes || header->part_crcs != row.part_crcs) {
    return CorruptError(name + ": '" + state.segments().Name(row.segment) + "' has another record at byte " +
                        std::to_string(row.offset));
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> payload, state.ReadRecordPayload(row, name));
  // A record of a kind that a later version added is kept: its checksum is all that is known of it.
  if (std::ranges::find(kTensorKinds, record.kind) != kTensorKinds.end()) {
    EVERLONG_RETURN_IF_ERROR(CheckTensors(state, record, payload));
  }
  ++report.records;
  report.bytes += std::ssize(payload);
  return OkStatus();
}

Result<VerifyReport> MemoryStore::Verify(bool repair) {
  return OrOutOfMemory([&]() -> Result<VerifyReport> {
    if (repair) EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    state_->WaitForQueue();
    VerifyReport found;
    {
      EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<const StoreState> as_of, state_->AsOfNow());
      Scrub scrub(*state_, as_of ? *as_of : *state_);
      EVERLONG_RETURN_IF_ERROR(scrub.Run());
      found = std::move(scrub.report);
    }
    return repair ? Repair(std::move(found)) : found;
  });
}

Result<VerifyReport> MemoryStore::Repair(VerifyReport found) {
  return OrOutOfMemory([&]() -> Result<VerifyReport> {
    if (found.damage.empty()) return std::move(found);
    // If the folder is gone, every record is missing.
    EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
    state_->WaitForQueue();
    EVERLONG_RETURN_IF_ERROR(Writer(*state_).Repair(found));
    return std::move(found);
  });
}

Status Writer::Repair(VerifyReport& report) {
  std::set<int64_t> suspects;
  for (const Damage& damage : report.damage) suspects.insert(damage.block);
  Scrub scrub(state_, state_, std::move(suspects));
  EVERLONG_RETURN_IF_ERROR(scrub.Run());
  report.damage = std::move(scrub.report.damage);
  if (report.damage.empty()) return OkStatus();
  scrub.damaged.erase(0);
  report.dropped.assign(scrub.damaged.begin(), scrub.damaged.end());
  const Status dropped = catalog().Drop(report.dropped, scrub.lost, scrub.lost_graph);  // may fail after its commit
  if (HostTier* const tier = state_.tier()) tier->Erase(report.dropped);
  if (scrub.manifest_is_damaged) EVERLONG_RETURN_IF_ERROR(state_.WriteManifestNow());
  EVERLONG_RETURN_IF_ERROR(dropped);
  if (!scrub.tables_are_damaged) return OkStatus();
  // No statement may reach a row whose bytes are damaged.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> left, catalog().CheckIntegrity());
  if (left.empty()) return OkStatus();
  return CorruptError("the catalog is damaged where no repair reaches: " + left[0] +
                      "; what can be read of it is still there");
}

}  // namespace everlong::store
