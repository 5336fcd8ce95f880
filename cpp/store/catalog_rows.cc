#include "catalog_rows.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "record.h"
#include "row_checksum.h"

namespace everlong::store {
namespace {

constexpr std::string_view kSelectTagsOf = "SELECT tag FROM tags WHERE block = ? ORDER BY position";
constexpr std::string_view kInsertPage =
    "INSERT INTO pages (block, kind, page, segment, record_offset, record_bytes, part_bytes, part_crcs, crc) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";

uint32_t PageChecksum(int64_t block, PayloadKind kind, int64_t page, const PageRow& row) {
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  return RowChecksum()
      .Add(block, kind, page, row.segment, row.offset, RecordBytes(parts, row.part_bytes), row.part_bytes,
           row.part_crcs)
      .value();
}

}  // namespace

BlockRow BlockRow::Of(const Query& query) {
  BlockRow row;
  row.info.id = query.Int64(0);
  row.state = query.Int64(1);
  row.info.stream = query.Int64(2);
  row.info.span = {query.Int64(3), query.Int64(4)};
  row.info.sink_tokens = static_cast<int32_t>(query.Int64(5));  // Problem() has the range of these
  row.info.created_at = query.Double(6);
  row.info.pages = static_cast<int32_t>(query.Int64(7));
  row.info.payload_bytes = query.Int64(8);
  row.info.token_crc = static_cast<uint32_t>(query.Int64(10));
  row.info.source = query.Text(11);
  row.role = query.Int64(12);
  row.info.role = RoleOf(row.role).value_or(Role::kRead);
  return row;
}

const char* BlockRow::Problem(const Query& query) const {
  if (Checksum() != query.Int64(9)) return "checksum mismatch";
  const TokenSpan span = info.span;
  // In this order: nothing overflows.
  const bool spans = span.begin >= 0 && span.end >= span.begin && query.Int64(13) % 4 == 0 &&
                     span.end - span.begin == query.Int64(13) / 4;
  if (!spans) return "numbers that no block has";
  const bool counts = query.Int64(5) >= 0 && query.Int64(5) <= span.size() && query.Int64(7) >= 0 &&
                      query.Int64(7) <= span.size() && info.payload_bytes >= 0;
  const bool known = info.id >= 1 && info.id <= kLargestBlockId && (state == kLive || state == kForgotten) &&
                     std::isfinite(info.created_at);
  return counts && known ? nullptr : "numbers that no block has";
}

uint32_t BlockRow::Checksum() const {
  RowChecksum crc;
  crc.Add(info.id, state, info.stream, info.span.begin, info.span.end, info.sink_tokens, info.created_at, info.pages);
  crc.Add(info.payload_bytes, info.token_crc, info.source, info.tags.size());
  for (const std::string& tag : info.tags) crc.Add(tag);
  // Rows of schema 1 keep their checksum when they are migrated.
  if (role != 0) crc.Add(role);
  return crc.value();
}

std::optional<PageRow> PageOf(const Query& query, int64_t block) {
  const std::span<const std::byte> crcs = query.Blob(4);
  // A damaged row may hold no checksum at all. Nothing may be copied from a null pointer.
  if (crcs.empty() || crcs.size() % 4 != 0) return std::nullopt;
  const auto parts = static_cast<int64_t>(crcs.size() / 4);
  const int64_t segment = query.Int64(0);
  const int64_t offset = query.Int64(1);
  const int64_t part_bytes = query.Int64(3);
  // What no record has. Sums of these do not overflow.
  if (segment < 1 || segment > INT32_MAX || offset < 0 || offset > kMostSegmentBytes || part_bytes < 0 ||
      part_bytes > kMostSegmentBytes / parts || query.Int64(kPageColumn) < 0 || query.Int64(kPageColumn) > INT32_MAX) {
    return std::nullopt;
  }
  PageRow row;
  row.segment = static_cast<int32_t>(segment);
  row.offset = offset;
  row.part_bytes = part_bytes;
  row.part_crcs.resize(crcs.size() / 4);
  std::memcpy(row.part_crcs.data(), crcs.data(), crcs.size());
  const auto kind = static_cast<PayloadKind>(query.Int64(kKindColumn));
  if (PageChecksum(block, kind, query.Int64(kPageColumn), row) != query.Int64(5)) return std::nullopt;
  return row;
}

Result<std::vector<PageRow>> RecordsOf(Database& database, int64_t id, std::optional<PayloadKind> kind) {
  std::vector<PageRow> rows;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(kSelectPages));
  EVERLONG_RETURN_IF_ERROR(query.Bind(id).ForEach([&] {
    if (kind && query.Int64(kKindColumn) != static_cast<int64_t>(*kind)) return;
    if (std::optional<PageRow> row = PageOf(query, id)) rows.push_back(*std::move(row));
  }));
  return rows;
}

Status InsertPage(Database& database, int64_t block, PayloadKind kind, int64_t page, const PageRow& row) {
  return database.Run(kInsertPage, block, kind, page, row.segment, row.offset,
                      RecordBytes(std::ssize(row.part_crcs), row.part_bytes), row.part_bytes, row.part_crcs,
                      PageChecksum(block, kind, page, row));
}

Result<std::optional<BlockRow>> FindBlock(Database& database, int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaOf(database));
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare((schema < 2 ? kSelectBlocksOfSchema1 : kSelectBlocks).one));
  EVERLONG_ASSIGN_OR_RETURN(const bool found, query.Bind(id).Step());
  if (!found) return std::optional<BlockRow>();
  BlockRow row = BlockRow::Of(query);
  EVERLONG_ASSIGN_OR_RETURN(Query tags, database.Prepare(kSelectTagsOf));
  EVERLONG_RETURN_IF_ERROR(tags.Bind(id).ForEach([&] { row.info.tags.push_back(tags.Text(0)); }));
  if (const char* const problem = row.Problem(query); problem != nullptr) {
    return Mismatch(database, problem + (" in the row of block " + std::to_string(id)));
  }
  return std::optional<BlockRow>(std::move(row));
}

Result<BlockRow> LiveBlock(Database& database, int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(std::optional<BlockRow> row, FindBlock(database, id));
  if (!row || row->state != kLive) return NotFoundError("no block " + std::to_string(id));
  return *std::move(row);
}

Result<PageRow> SelectRecord(Database& database, int64_t id, PayloadKind kind) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(kSelectPages));
  std::optional<PageRow> found;
  EVERLONG_RETURN_IF_ERROR(query.Bind(id).ForEach([&] {
    if (found || query.Int64(kKindColumn) != static_cast<int64_t>(kind) || query.Int64(kPageColumn) != 0)
      return OkStatus();
    found = PageOf(query, id);
    if (found) return OkStatus();
    return Mismatch(database, "the row of block " + std::to_string(id) + " kind " +
                                  std::to_string(static_cast<int64_t>(kind)) + " does not match its checksum");
  }));
  if (found) return *std::move(found);
  return NotFoundError("block " + std::to_string(id) + " has no payload of kind " +
                       std::to_string(static_cast<int64_t>(kind)));
}

Status Mismatch(const Database& database, const std::string& what) {
  return CorruptError("catalog '" + database.name() + "': " + what);
}

Result<int64_t> SelectNumber(Database& database, std::string_view sql) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(sql));
  EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
  if (!row) return CorruptError("'" + database.name() + "' gives no answer to " + std::string(sql));
  return query.Int64(0);
}

}  // namespace everlong::store
