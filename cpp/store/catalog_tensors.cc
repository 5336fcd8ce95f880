// The catalog's reads and writes of the tensors of its blocks.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "catalog.h"
#include "catalog_rows.h"
#include "row_checksum.h"

namespace everlong::store {
namespace {

constexpr std::string_view kInsertTensor =
    "INSERT INTO tensors (block, name, kind, dtype, shape, data_offset, data_bytes, data_crc, record_tensors, crc) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr std::string_view kSelectTensors =
    "SELECT name, kind, dtype, shape, data_offset, data_bytes, data_crc, record_tensors, crc FROM tensors "
    "WHERE block = ? AND " EVERLONG_HAS_KIND " ORDER BY name";
constexpr std::string_view kSelectTensorChecksums =
    "SELECT block, name, dtype, shape, data_crc FROM tensors WHERE block BETWEEN ? AND ? ORDER BY block, name";

uint32_t TensorChecksum(int64_t block, const TensorRow& row) {
  return RowChecksum()
      .Add(block, row.info.name, row.record, row.info.dtype, row.info.shape, row.begin, row.info.bytes, row.data_crc,
           row.of)
      .value();
}

// Return a row's tensor; none when the row does not match its checksum.
std::optional<TensorRow> TensorOf(const Query& query, int64_t block) {
  TensorRow row;
  row.info.name = query.Text(0);
  row.record = static_cast<PayloadKind>(query.Int64(1));
  row.info.dtype = query.Text(2);
  const std::span<const std::byte> shape = query.Blob(3);
  if (shape.size() % sizeof(int64_t) != 0) return std::nullopt;
  row.info.shape.resize(shape.size() / sizeof(int64_t));
  if (!shape.empty()) std::memcpy(row.info.shape.data(), shape.data(), shape.size());
  row.begin = query.Int64(4);
  row.info.bytes = query.Int64(5);
  row.data_crc = static_cast<uint32_t>(query.Int64(6));
  row.of = query.Int64(7);
  if (TensorChecksum(block, row) != query.Int64(8)) return std::nullopt;
  return row;
}

// Call it in the caller's transaction, for a live block.
Result<std::vector<TensorRow>> SelectTensors(Database& database, int64_t id) {
  std::map<PayloadKind, int64_t> records;  // tensors found of each
  EVERLONG_ASSIGN_OR_RETURN(Query pages, database.Prepare(kSelectPages));
  EVERLONG_RETURN_IF_ERROR(pages.Bind(id).ForEach([&] {
    const auto kind = static_cast<PayloadKind>(pages.Int64(kKindColumn));
    if (std::ranges::find(kTensorKinds, kind) != kTensorKinds.end()) records[kind] = 0;
  }));
  std::vector<TensorRow> rows;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(kSelectTensors));
  EVERLONG_RETURN_IF_ERROR(query.Bind(id).ForEach([&] {
    std::optional<TensorRow> row = TensorOf(query, id);
    if (!row) return Mismatch(database, "checksum mismatch in the row of a tensor of block " + std::to_string(id));
    const auto record = records.find(row->record);
    if (record == records.end()) {
      return Mismatch(database, "a tensor of block " + std::to_string(id) + " has lost its record");
    }
    ++record->second;
    rows.push_back(*std::move(row));
    return OkStatus();
  }));
  const auto is_whole = [&records](const TensorRow& row) { return row.of == records.at(row.record); };
  const bool some_of_each = std::ranges::all_of(records, [](const auto& record) { return record.second > 0; });
  if (some_of_each && std::ranges::all_of(rows, is_whole)) return rows;
  return Mismatch(database,
                  "the rows of the tensors of block " + std::to_string(id) + " are not all that its records have");
}

}  // namespace

Status InsertTensorRows(Database& database, int64_t id, std::span<const TensorRow> rows) {
  for (const TensorRow& row : rows) {
    EVERLONG_RETURN_IF_ERROR(database.Run(kInsertTensor, id, row.info.name, row.record, row.info.dtype, row.info.shape,
                                          row.begin, row.info.bytes, row.data_crc, row.of, TensorChecksum(id, row)));
  }
  return OkStatus();
}

Status InsertTensors(Database& database, int64_t id, const TensorRecord& record) {
  EVERLONG_RETURN_IF_ERROR(InsertPage(database, id, PayloadKind::kTensors, 0, record.row));
  return InsertTensorRows(database, id, record.tensors);
}

Status Catalog::Migrate(std::span<const OldTensors> tensors) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  totals_.reset();
  EVERLONG_RETURN_IF_ERROR(AddSecondSchema(turn.database));
  for (const OldTensors& old : tensors) {
    if (!old.tensors) continue;  // damaged: a repair removes it
    EVERLONG_RETURN_IF_ERROR(InsertTensorRows(turn.database, old.block, *old.tensors));
    // This format has no record without tensors.
    if (old.tensors->empty()) EVERLONG_RETURN_IF_ERROR(turn.database.Run(kDeletePage, old.block, old.kind, 0));
  }
  return turn.transaction->Commit();
}

Result<std::vector<PageRow>> Catalog::PutTensors(int64_t id, const std::optional<TensorRecord>& record) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  EVERLONG_RETURN_IF_ERROR(LiveBlock(turn.database, id).status());
  ChangingTotals totals(totals_);
  EVERLONG_RETURN_IF_ERROR(totals.Leave(turn.database, id));
  std::vector<PageRow> old;
  for (const PayloadKind kind : kTensorKinds) {
    EVERLONG_ASSIGN_OR_RETURN(std::vector<PageRow> records, RecordsOf(turn.database, id, kind));
    std::ranges::move(records, std::back_inserter(old));
    EVERLONG_RETURN_IF_ERROR(turn.database.Run(kDeletePage, id, kind, 0));
  }
  EVERLONG_RETURN_IF_ERROR(turn.database.Run(kDeleteTensors, id));
  if (record) EVERLONG_RETURN_IF_ERROR(InsertTensors(turn.database, id, *record));
  EVERLONG_RETURN_IF_ERROR(totals.Enter(turn.database, id));
  EVERLONG_RETURN_IF_ERROR(Commit(turn, totals));
  return old;
}

Result<std::vector<TensorRow>> Catalog::Tensors(int64_t id) const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_RETURN_IF_ERROR(LiveBlock(turn.database, id).status());
  return SelectTensors(turn.database, id);
}

Result<PlacedTensor> Catalog::FindTensor(int64_t id, const std::string& name) const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_RETURN_IF_ERROR(LiveBlock(turn.database, id).status());
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> rows, SelectTensors(turn.database, id));
  const auto found = std::ranges::find_if(rows, [&name](const TensorRow& row) { return row.info.name == name; });
  if (found == rows.end()) return NotFoundError("block " + std::to_string(id) + " has no tensor '" + name + "'");
  EVERLONG_ASSIGN_OR_RETURN(PageRow record, SelectRecord(turn.database, id, found->record));
  return PlacedTensor{std::move(*found), std::move(record)};
}

// A damaged row gives another checksum, and so differs from whatever was noted of it.
Result<std::map<int64_t, uint32_t>> Catalog::TensorChecksums(int64_t first, int64_t last,
                                                             std::span<const std::string> names) const {
  std::map<int64_t, RowChecksum> checksums;
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaOf(turn.database));
  std::map<int64_t, uint32_t> found;
  if (schema < 2) return found;
  EVERLONG_ASSIGN_OR_RETURN(Query query, turn.database.Prepare(kSelectTensorChecksums));
  EVERLONG_RETURN_IF_ERROR(query.Bind(first, last).ForEach([&] {
    const std::string name = query.Text(1);
    if (std::ranges::find(names, name) == names.end()) return;
    checksums[query.Int64(0)].Add(name, query.Text(2), query.Blob(3), query.Int64(4));
  }));
  for (const auto& [block, checksum] : checksums) found.emplace_hint(found.end(), block, checksum.value());
  return found;
}

}  // namespace everlong::store
