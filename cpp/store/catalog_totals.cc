#include "catalog_totals.h"

#include <string_view>

#include "catalog_file.h"
#include "catalog_rows.h"

namespace everlong::store {
namespace {

constexpr std::string_view kCountBlocks =
    "SELECT count(*), coalesce(sum(pages), 0), coalesce(sum(span_end - span_begin), 0), "
    "coalesce(sum(payload_bytes), 0) FROM blocks WHERE state = 0";
constexpr std::string_view kCountRecords =
    "SELECT segment, count(*), sum(record_bytes) FROM pages WHERE block IN (SELECT id FROM blocks WHERE state = 0) "
    "GROUP BY segment";
constexpr std::string_view kCountTensors =
    "SELECT name, count(*), sum(data_bytes) FROM tensors WHERE block IN (SELECT id FROM blocks WHERE state = 0) "
    "GROUP BY name";
constexpr std::string_view kCountNodes = "SELECT count(*) FROM nodes";
constexpr std::string_view kCountEdges = "SELECT count(*) FROM edges";
constexpr std::string_view kRecordsOf = "SELECT segment, record_bytes FROM pages WHERE block = ?";
constexpr std::string_view kTensorsOf = "SELECT name, data_bytes FROM tensors WHERE block = ?";

template <class Key>
void AddTo(std::map<Key, Amount>& amounts, const Key& key, int64_t count, int64_t bytes) {
  Amount& amount = amounts[key];
  amount.count += count;
  amount.bytes += bytes;
  if (amount.count == 0) amounts.erase(key);
}

}  // namespace

Result<CatalogTotals> CountTotals(Database& database) {
  CatalogTotals totals;
  EVERLONG_ASSIGN_OR_RETURN(Query blocks, database.Prepare(kCountBlocks));
  EVERLONG_RETURN_IF_ERROR(blocks.ForEach([&] {
    totals.blocks = blocks.Int64(0);
    totals.pages = blocks.Int64(1);
    totals.tokens = blocks.Int64(2);
    totals.payload_bytes = blocks.Int64(3);
  }));
  EVERLONG_ASSIGN_OR_RETURN(Query records, database.Prepare(kCountRecords));
  EVERLONG_RETURN_IF_ERROR(
      records.ForEach([&] { AddTo(totals.records, records.Int64(0), records.Int64(1), records.Int64(2)); }));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaOf(database));
  if (schema < 2) return totals;
  EVERLONG_ASSIGN_OR_RETURN(Query tensors, database.Prepare(kCountTensors));
  EVERLONG_RETURN_IF_ERROR(
      tensors.ForEach([&] { AddTo(totals.tensors, tensors.Text(0), tensors.Int64(1), tensors.Int64(2)); }));
  EVERLONG_ASSIGN_OR_RETURN(totals.nodes, SelectNumber(database, kCountNodes));
  EVERLONG_ASSIGN_OR_RETURN(totals.edges, SelectNumber(database, kCountEdges));
  return totals;
}

Status ChangingTotals::Add(Database& database, int64_t block, int64_t sign) {
  if (!changed_) return OkStatus();
  EVERLONG_ASSIGN_OR_RETURN(const BlockRow row, LiveBlock(database, block));
  changed_->blocks += sign;
  changed_->pages += sign * row.info.pages;
  changed_->tokens += sign * row.info.span.size();
  changed_->payload_bytes += sign * row.info.payload_bytes;
  EVERLONG_ASSIGN_OR_RETURN(Query records, database.Prepare(kRecordsOf));
  EVERLONG_RETURN_IF_ERROR(
      records.Bind(block).ForEach([&] { AddTo(changed_->records, records.Int64(0), sign, sign * records.Int64(1)); }));
  EVERLONG_ASSIGN_OR_RETURN(Query tensors, database.Prepare(kTensorsOf));
  return tensors.Bind(block).ForEach([&] { AddTo(changed_->tensors, tensors.Text(0), sign, sign * tensors.Int64(1)); });
}

}  // namespace everlong::store
