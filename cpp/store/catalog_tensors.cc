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
    "WHERE block = ? ORDER BY name";
constexpr std::string_view kDeleteTensors = "DELETE FROM tensors WHERE block = ?";
constexpr std::string_view kSumTensorBytes =
    "SELECT name, sum(data_bytes) FROM tensors WHERE block IN (SELECT id FROM blocks WHERE state = 0) GROUP BY name";

uint32_t TensorChecksum(int64_t block, const TensorRow& row) {
  return RowChecksum()
      .Add(block)
      .Add(row.info.name)
      .Add(static_cast<int64_t>(row.record))
      .Add(row.info.dtype)
      .Add(std::as_bytes(std::span(row.info.shape)))
      .Add(row.begin)
      .Add(row.info.bytes)
      .Add(int64_t{row.data_crc})
      .Add(row.of)
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

}  // namespace

Status Catalog::Mismatch(const std::string& what) const {
  return CorruptError("catalog '" + database_.name() + "': " + what);
}

Status Catalog::InsertTensorRows(int64_t id, std::span<const TensorRow> rows) {
  EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kInsertTensor));
  for (const TensorRow& row : rows) {
    insert.Rewind();
    insert.Bind(id).Bind(row.info.name).Bind(static_cast<int64_t>(row.record)).Bind(row.info.dtype);
    insert.Bind(std::as_bytes(std::span(row.info.shape))).Bind(row.begin).Bind(row.info.bytes);
    insert.Bind(int64_t{row.data_crc}).Bind(row.of).Bind(int64_t{TensorChecksum(id, row)});
    EVERLONG_RETURN_IF_ERROR(insert.Run());
  }
  return OkStatus();
}

Status Catalog::InsertTensors(int64_t id, const TensorRecord& record) {
  {
    EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kInsertPage));
    BindPage(insert, id, PayloadKind::kTensors, 0, record.row);
    EVERLONG_RETURN_IF_ERROR(insert.Run());
  }
  return InsertTensorRows(id, record.tensors);
}

Status Catalog::PutTensors(int64_t id, const TensorRecord& record) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  EVERLONG_RETURN_IF_ERROR(LiveBlock(id).status());
  for (const PayloadKind kind : kTensorKinds) {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kDeletePage));
    EVERLONG_RETURN_IF_ERROR(query.Bind(id).Bind(static_cast<int64_t>(kind)).Bind(int64_t{0}).Run());
  }
  {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kDeleteTensors));
    EVERLONG_RETURN_IF_ERROR(query.Bind(id).Run());
  }
  EVERLONG_RETURN_IF_ERROR(InsertTensors(id, record));
  return transaction.Commit();
}

// Call it in the caller's transaction, for a live block.
Result<std::vector<TensorRow>> Catalog::SelectTensors(int64_t id) {
  std::map<int64_t, int64_t> records;  // kind -> tensors found of it
  {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectPages));
    query.Bind(id);
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
      if (!more) break;
      const int64_t kind = query.Int64(kKindColumn);
      if (std::ranges::find(kTensorKinds, static_cast<PayloadKind>(kind)) != kTensorKinds.end()) records[kind] = 0;
    }
  }
  std::vector<TensorRow> rows;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectTensors));
  query.Bind(id);
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    std::optional<TensorRow> row = TensorOf(query, id);
    if (!row) return Mismatch("checksum mismatch in the row of a tensor of block " + std::to_string(id));
    const auto record = records.find(static_cast<int64_t>(row->record));
    if (record == records.end()) return Mismatch("a tensor of block " + std::to_string(id) + " has lost its record");
    ++record->second;
    rows.push_back(*std::move(row));
  }
  const auto is_whole = [&records](const TensorRow& row) {
    return row.of == records.at(static_cast<int64_t>(row.record));
  };
  const bool some_of_each = std::ranges::all_of(records, [](const auto& record) { return record.second > 0; });
  if (some_of_each && std::ranges::all_of(rows, is_whole)) return rows;
  return Mismatch("the rows of the tensors of block " + std::to_string(id) + " are not all that its records have");
}

Result<std::vector<TensorRow>> Catalog::Tensors(int64_t id) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_RETURN_IF_ERROR(LiveBlock(id).status());
  return SelectTensors(id);
}

Result<PlacedTensor> Catalog::FindTensor(int64_t id, const std::string& name) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_RETURN_IF_ERROR(LiveBlock(id).status());
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorRow> rows, SelectTensors(id));
  const auto found = std::ranges::find_if(rows, [&name](const TensorRow& row) { return row.info.name == name; });
  if (found == rows.end()) return NotFoundError("block " + std::to_string(id) + " has no tensor '" + name + "'");
  EVERLONG_ASSIGN_OR_RETURN(PageRow record, SelectRecord(id, found->record));
  return PlacedTensor{std::move(*found), std::move(record)};
}

Result<std::map<std::string, int64_t>> Catalog::TensorBytes() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  std::map<std::string, int64_t> bytes;
  if (schema < 2) return bytes;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSumTensorBytes));
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return bytes;
    bytes.emplace(query.Text(0), query.Int64(1));
  }
}

}  // namespace everlong::store
