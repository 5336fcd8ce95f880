// Rows of the catalog's tables as values, each with its checksum (docs/format.md, "catalog.sqlite").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog.h"
#include "everlong/base/sqlite.h"
#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"

namespace everlong::store {

// States of a block.
inline constexpr int64_t kLive = 0;
inline constexpr int64_t kForgotten = 1;

// No segment is larger, so that sums of offsets and sizes do not overflow.
inline constexpr int64_t kMostSegmentBytes = int64_t{1} << 60;

// The queries that Catalog::BlockRow::Of takes: for one block, for all, or for those above an id. Schema 1 has no role:
// all was read.
struct BlockQueries {
  std::string_view one;
  std::string_view all;
  std::string_view behind;
};
#define EVERLONG_SELECT_BLOCKS(role)                                                                                \
  "SELECT id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, crc, token_crc, " \
  "source, " role ", length(token_ids) FROM blocks"
#define EVERLONG_BLOCK_QUERIES(role)                                                          \
  {EVERLONG_SELECT_BLOCKS(role) " WHERE id = ?", EVERLONG_SELECT_BLOCKS(role) " ORDER BY id", \
   EVERLONG_SELECT_BLOCKS(role) " WHERE id > ? ORDER BY id"}
inline constexpr BlockQueries kSelectBlocks = EVERLONG_BLOCK_QUERIES("role");
inline constexpr BlockQueries kSelectBlocksOfSchema1 = EVERLONG_BLOCK_QUERIES("0");
#undef EVERLONG_BLOCK_QUERIES
#undef EVERLONG_SELECT_BLOCKS

// The fields of a row of `blocks`. Tags come from their own table.
struct BlockRow {
  BlockInfo info;
  int64_t state = kLive;
  int64_t role = 0;  // as it is stored, damaged or not

  // Return the current row of `query`, with the checksum that is stored with it.
  static BlockRow Of(const Query& query);
  // What is wrong with it; null when nothing is: it matches the checksum that is stored with it, and a block can have
  // such numbers. The tokens are bounded by the token ids that are stored.
  [[nodiscard]] const char* Problem(const Query& query) const;

  [[nodiscard]] uint32_t Checksum() const;
};

// Return a block's row, of a live block or, for FindBlock, of any. Call these in a transaction.
Result<std::optional<BlockRow>> FindBlock(Database& database, int64_t id);
Result<BlockRow> LiveBlock(Database& database, int64_t id);

// In SQL, whether a row has a kind of record; whether a row of `pages` has the key of one. Another, 2^32 more or a
// text, would be read as a record's, and neither found nor removed by it.
#define EVERLONG_HAS_KIND "(typeof(kind) = 'integer' AND kind BETWEEN 0 AND 4294967295)"
#define EVERLONG_HAS_PAGE_KEY "(" EVERLONG_HAS_KIND " AND typeof(page) = 'integer' AND page BETWEEN 0 AND 2147483647)"
// The same for a row of `edges` and its key.
#define EVERLONG_HAS_EDGE_KEY                                                                                       \
  "(typeof(source) = 'integer' AND typeof(target) = 'integer' AND typeof(kind) = 'integer' AND kind BETWEEN 0 AND " \
  "2147483647)"
// The records of a block. A row has what PageOf takes, and kind and page.
inline constexpr std::string_view kSelectPages =
    "SELECT segment, record_offset, record_bytes, part_bytes, part_crcs, crc, kind, page FROM pages "
    "WHERE block = ? AND " EVERLONG_HAS_PAGE_KEY " ORDER BY kind, page";
inline constexpr int kKindColumn = 6;
inline constexpr int kPageColumn = 7;
// Return the record that a row describes; none when the row does not match its checksum.
std::optional<PageRow> PageOf(const Query& query, int64_t block);
// Return the records of a block, of one kind or of all. A damaged row is left out.
Result<std::vector<PageRow>> RecordsOf(Database& database, int64_t id, std::optional<PayloadKind> kind = {});

Status InsertPage(Database& database, int64_t block, PayloadKind kind, int64_t page, const PageRow& row);

inline constexpr std::string_view kDeleteTensors = "DELETE FROM tensors WHERE block = ?";
inline constexpr std::string_view kDeletePage = "DELETE FROM pages WHERE block = ? AND kind = ? AND page = ?";

// The last id given.
inline constexpr std::string_view kSelectSequence =
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'blocks'), 0)";

// How often blocks were forgotten or dropped. It stands in SQLite's own table of numbers, so that no table is added.
inline constexpr std::string_view kSelectForgettings =
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'forgettings'), 0)";

// Return the record of another kind than kv; kNotFound when the block has none.
Result<PageRow> SelectRecord(Database& database, int64_t id, PayloadKind kind);

// Insert the rows of a record's tensors; the record itself, too.
Status InsertTensorRows(Database& database, int64_t id, std::span<const TensorRow> rows);
Status InsertTensors(Database& database, int64_t id, const TensorRecord& record);

// Return the one number that a query answers.
Result<int64_t> SelectNumber(Database& database, std::string_view sql);
// Return the numbers of its first column.
template <class... Values>
Result<std::vector<int64_t>> SelectNumbers(Database& database, std::string_view sql, const Values&... values) {
  std::vector<int64_t> numbers;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(sql));
  query.Bind(values...);
  EVERLONG_RETURN_IF_ERROR(query.ForEach([&] { numbers.push_back(query.Int64(0)); }));
  return numbers;
}

// Return kCorrupt that names the catalog.
Status Mismatch(const Database& database, const std::string& what);

}  // namespace everlong::store
