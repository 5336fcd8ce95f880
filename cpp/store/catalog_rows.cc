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

uint32_t PageChecksum(int64_t block, PayloadKind kind, int64_t page, const PageRow& row) {
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  return RowChecksum()
      .Add(block)
      .Add(static_cast<int64_t>(kind))
      .Add(page)
      .Add(int64_t{row.segment})
      .Add(row.offset)
      .Add(RecordBytes(parts, row.part_bytes))
      .Add(row.part_bytes)
      .Add(std::as_bytes(std::span(row.part_crcs)))
      .value();
}

}  // namespace

Catalog::BlockRow Catalog::BlockRow::Of(const Query& query) {
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

const char* Catalog::BlockRow::Problem(const Query& query) const {
  if (Checksum() != query.Int64(9)) return "checksum mismatch";
  const TokenSpan span = info.span;
  // In this order: nothing overflows.
  const bool spans = span.begin >= 0 && span.end >= span.begin && query.Int64(13) % 4 == 0 &&
                     span.end - span.begin == query.Int64(13) / 4;
  const bool counts = query.Int64(5) >= 0 && query.Int64(5) <= span.size() && query.Int64(7) >= 0 &&
                      query.Int64(7) <= span.size() && info.payload_bytes >= 0;
  const bool known = info.id >= 1 && info.id <= kLargestBlockId && (state == kLive || state == kForgotten) &&
                     std::isfinite(info.created_at);
  return spans && counts && known ? nullptr : "numbers that no block has";
}

uint32_t Catalog::BlockRow::Checksum() const {
  RowChecksum crc;
  crc.Add(info.id).Add(state).Add(info.stream).Add(info.span.begin).Add(info.span.end);
  crc.Add(int64_t{info.sink_tokens}).Add(info.created_at).Add(int64_t{info.pages}).Add(info.payload_bytes);
  crc.Add(int64_t{info.token_crc}).Add(info.source).Add(static_cast<int64_t>(info.tags.size()));
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
  row.segment = static_cast<int32_t>(query.Int64(0));
  row.offset = query.Int64(1);
  row.part_bytes = query.Int64(3);
  row.part_crcs.resize(crcs.size() / 4);
  std::memcpy(row.part_crcs.data(), crcs.data(), crcs.size());
  const auto kind = static_cast<PayloadKind>(query.Int64(kKindColumn));
  if (PageChecksum(block, kind, query.Int64(kPageColumn), row) != query.Int64(5)) return std::nullopt;
  return row;
}

void BindPage(Query& query, int64_t block, PayloadKind kind, int64_t page, const PageRow& row) {
  query.Bind(block).Bind(static_cast<int64_t>(kind)).Bind(page).Bind(int64_t{row.segment}).Bind(row.offset);
  query.Bind(RecordBytes(static_cast<int64_t>(row.part_crcs.size()), row.part_bytes)).Bind(row.part_bytes);
  query.Bind(std::as_bytes(std::span(row.part_crcs))).Bind(int64_t{PageChecksum(block, kind, page, row)});
}

Result<int64_t> SelectNumber(Database& database, std::string_view sql) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(sql));
  EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
  if (!row) return CorruptError("'" + database.name() + "' gives no answer to " + std::string(sql));
  return query.Int64(0);
}

}  // namespace everlong::store
