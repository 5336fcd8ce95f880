#include "folder_rows.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "folder_sql.h"
#include "folder_tree.h"
#include "record.h"
#include "tensor_rows.h"

namespace everlong::fuzz {
namespace {

using store::PayloadKind;

struct Table {
  const char* name;
  const char* key;
  std::vector<const char*> columns;
};
const std::vector<Table> kTables = {
    {"blocks",
     "id",
     {"id", "state", "stream", "span_begin", "span_end", "sink_tokens", "created_at", "pages", "payload_bytes", "crc",
      "token_crc", "source", "role", "token_ids"}},
    {"tags", "block, position", {"block", "position", "tag"}},
    {"pages",
     "block, kind, page",
     {"block", "kind", "page", "segment", "record_offset", "record_bytes", "part_bytes", "part_crcs", "crc"}},
    {"nodes",
     "id",
     {"id", "kind", "level", "count", "square_sum", "created_at", "updated_at", "crc", "vector", "linear_sum"}},
    {"edges", "source, target, kind", {"source", "target", "kind", "weight", "time", "crc"}},
    {"tensors",
     "block, name",
     {"block", "name", "kind", "dtype", "shape", "data_offset", "data_bytes", "data_crc", "record_tensors", "crc"}},
    {"sqlite_sequence", "name", {"name", "seq"}},
};

// What a column may become; COLUMN and TABLE stand for names, AT for a small number.
constexpr std::array kValues = {"0",
                                "1",
                                "-1",
                                "AT",
                                "-AT",
                                "COLUMN + AT",
                                "COLUMN - AT",
                                "-COLUMN",
                                "COLUMN * AT",
                                "COLUMN | (1 << AT)",
                                "1 << AT",
                                "(1 << AT) - 1",
                                "COLUMN + (1 << AT)",
                                "4096 * AT",
                                "9223372036854775807",
                                "-9223372036854775808",
                                "9e999",
                                "-9e999",
                                "1e308",
                                "0.1",
                                "-0.0",
                                "1e18",
                                "NULL",
                                "''",
                                "x''",
                                "'COLUMN'",
                                "'topic'",
                                "'text/ids'",
                                "'F32'",
                                "'meaning/pack'",
                                "zeroblob(AT)",
                                "zeroblob(4 * AT)",
                                "zeroblob(65536)",
                                "zeroblob(8 << (AT % 16))",
                                "CAST(COLUMN AS TEXT)",
                                "CAST(COLUMN AS BLOB)",
                                "CAST(COLUMN AS REAL)",
                                "substr(COLUMN, 1, AT)",
                                "substr(COLUMN, AT)",
                                "substr(COLUMN, 1, length(COLUMN) - AT)",
                                "CAST(COLUMN || zeroblob(AT) AS BLOB)",
                                "CAST(COLUMN || COLUMN AS BLOB)",
                                "CAST(x'0000c07f' || substr(COLUMN, 5) AS BLOB)",
                                "CAST(x'0000807f' || substr(COLUMN, 5) AS BLOB)",
                                "CAST(x'000000000000f07f' || substr(COLUMN, 9) AS BLOB)",
                                "CAST(x'ffffffff' || substr(COLUMN, 5) AS BLOB)",
                                "CAST(substr(COLUMN, 1, AT) || x'ff' || substr(COLUMN, AT + 2) AS BLOB)",
                                "CAST(x'0000000000010000' || substr(COLUMN, 9) AS BLOB)",
                                "(SELECT COLUMN FROM TABLE LIMIT 1 OFFSET AT)",
                                "(SELECT max(COLUMN) FROM TABLE)",
                                "replace(hex(zeroblob(5000)), '0', 'x')",
                                "'day/2020-01-01'",
                                "34359738367",
                                "34359738368",
                                "68719476736",
                                "68719476737",
                                "4611686018427387904",
                                "1152921504606846976",
                                "x'ff'",
                                "'a' || char(0) || 'b'",
                                "CAST(x'fffe80' AS TEXT)"};

// What may become of the schema or of the header.
constexpr std::array kSchemas = {
    "CREATE TRIGGER more AFTER INSERT ON blocks BEGIN DELETE FROM tags; END",
    "CREATE VIEW more AS SELECT * FROM blocks",
    "CREATE TABLE more (x, y GENERATED ALWAYS AS (printf('%.*c', 9000000, 'x')) VIRTUAL)",
    "CREATE INDEX more ON blocks (abs(stream))",
    "ALTER TABLE tags ADD COLUMN more TEXT DEFAULT 'x'",
    "ALTER TABLE nodes RENAME TO more",
    "DROP TABLE tags",
    "DROP TABLE edges",
    "DROP INDEX edges_by_target",
    "PRAGMA user_version = AT",
    "PRAGMA user_version = -1",
    "PRAGMA application_id = AT",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA journal_mode = DELETE; PRAGMA page_size = 65536; VACUUM; PRAGMA journal_mode = WAL",
    "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM; PRAGMA journal_mode = WAL",
    "PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = FULL; VACUUM; PRAGMA journal_mode = WAL",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = AT WHERE name = 'TABLE'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = rootpage % 9 + 2",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'INTEGER', 'TEXT')",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = sql || ' '",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET tbl_name = 'blocks' WHERE type = 'index'",
    "PRAGMA writable_schema = ON; DELETE FROM sqlite_master WHERE name = 'TABLE'",
    "PRAGMA writable_schema = ON; INSERT INTO sqlite_master SELECT * FROM sqlite_master",
    "INSERT INTO sqlite_sequence VALUES ('blocks', AT)",
    "DELETE FROM sqlite_sequence",
    "DELETE FROM TABLE",
};

void Replace(std::string& text, std::string_view name, const std::string& with) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + with.size())) {
    text.replace(at, name.size(), with);
  }
}

// Read a statement, or a part of one, with its names filled in.
std::string Filled(Choices& choices, std::string text, const Table& table, const std::string& column) {
  Replace(text, "TABLE", table.name);
  Replace(text, "COLUMN", column);
  if (text.find("AT") != std::string::npos) {
    const std::string at = std::to_string(choices.ConsumeIntegralInRange(0, 70));
    for (size_t begin = text.find("AT"); begin != std::string::npos; begin = text.find("AT", begin + 1)) {
      const bool word = (begin == 0 || !std::isalpha(static_cast<unsigned char>(text[begin - 1]))) &&
                        (begin + 2 == text.size() || !std::isalpha(static_cast<unsigned char>(text[begin + 2])));
      if (word) text.replace(begin, 2, at);
    }
  }
  return text;
}

std::string Statement(Choices& choices) {
  const Table& table = kTables[choices.ConsumeIntegralInRange<size_t>(0, kTables.size() - 1)];
  const std::string column = table.columns[choices.ConsumeIntegralInRange<size_t>(0, table.columns.size() - 1)];
  const std::string row = std::to_string(choices.ConsumeIntegralInRange(0, 12));
  const std::string name = table.name;
  const std::string key = table.key;
  const std::string one = " WHERE (" + key + ") IN (SELECT " + key + " FROM " + name + " LIMIT 1 OFFSET " + row + ")";
  const auto value = [&] { return Filled(choices, choices.PickValueInArray(kValues), table, column); };
  switch (choices.ConsumeIntegralInRange(0, 9)) {
    case 0:
      return "DELETE FROM " + name + one;
    case 1:
    case 2: {
      std::string columns;
      for (const char* const each : table.columns) {
        columns += (columns.empty() ? "" : ", ") + (each == column ? value() : std::string(each));
      }
      return "INSERT OR REPLACE INTO " + name + " SELECT " + columns + " FROM " + name + " LIMIT 1 OFFSET " + row;
    }
    case 3:
      return Filled(choices, choices.PickValueInArray(kSchemas), table, column);
    case 4:
      return "UPDATE OR REPLACE " + name + " SET " + column + " = " + value();
    default:
      return "UPDATE OR REPLACE " + name + " SET " + column + " = " + value() + one;
  }
}

// --- checksums

constexpr const char* kRightRows =
    "UPDATE pages SET crc = row_crc('iuiiiiib', block, kind, page, segment, record_offset, "
    "  (52 + length(part_crcs) / 4 * 4 + 4095) / 4096 * 4096 + "
    "  (length(part_crcs) / 4 * part_bytes + 4095) / 4096 * 4096, part_bytes, part_crcs);"
    "UPDATE nodes SET crc = row_crc('innirrrbb', id, kind, level, count, square_sum, created_at, updated_at, vector, "
    "  linear_sum);"
    "UPDATE edges SET crc = row_crc('iinrr', source, target, kind, weight, time);"
    "UPDATE tensors SET crc = row_crc('itutbiiui', block, name, kind, dtype, shape, data_offset, data_bytes, data_crc, "
    "  record_tensors)";
// `role` came with the second schema.
constexpr const char* kRightBlocks =
    "UPDATE blocks SET crc = row_crc('iiiiinrniutho', id, state, stream, span_begin, span_end, sink_tokens, "
    "created_at, "
    "  pages, payload_bytes, token_crc, source, coalesce((SELECT group_concat(hex(tag) || ',', '') FROM "
    "  (SELECT tag FROM tags WHERE block = blocks.id ORDER BY position)), ''), ROLE)";

void RightRowsOf(PlainCatalog& catalog) {
  std::string statements = kRightRows;
  for (size_t at = 0; at < statements.size();) {
    const size_t end = std::min(statements.find(';', at), statements.size());
    catalog.Run(statements.substr(at, end - at));
    at = end + 1;
  }
  for (const char* const role : {"0", "role"}) {
    std::string blocks = kRightBlocks;
    Replace(blocks, "ROLE", role);
    catalog.Run(blocks);
  }
}

struct Place {
  int64_t block = 0;
  int64_t kind = 0;
  int64_t page = 0;
  int64_t segment = 0;
  int64_t offset = 0;
  int64_t part_bytes = 0;
  int64_t parts = 0;
};

std::vector<Place> PlacesIn(PlainCatalog& catalog) {
  std::vector<Place> places;
  const auto query = catalog.Prepare(
      "SELECT block, kind, page, segment, record_offset, part_bytes, length(part_crcs) / 4 FROM pages LIMIT 100");
  while (query != nullptr && sqlite3_step(query.get()) == SQLITE_ROW) {
    const auto number = [&query](int column) { return sqlite3_column_int64(query.get(), column); };
    places.push_back({number(0), number(1), number(2), number(3), number(4), number(5), number(6)});
  }
  return places;
}

// Rows of tensors whose bytes may have changed.
void RightTensors(PlainCatalog& catalog, const Place& place, std::span<const std::byte> payload) {
  const auto rows = store::TensorRowsOf(static_cast<PayloadKind>(place.kind), payload);
  if (!rows.ok()) return;
  for (const store::TensorRow& row : *rows) {
    const auto update = catalog.Prepare("UPDATE tensors SET data_crc = ? WHERE block = ? AND name = ?");
    if (update == nullptr) return;
    sqlite3_bind_int64(update.get(), 1, row.data_crc);
    sqlite3_bind_int64(update.get(), 2, place.block);
    sqlite3_bind_text(update.get(), 3, row.info.name.c_str(), -1, SQLITE_TRANSIENT);
    sqlite3_step(update.get());
  }
}

void RightRecord(PlainCatalog& catalog, const std::filesystem::path& folder, const Place& place) {
  std::string digits = std::to_string(place.segment);
  digits.insert(0, digits.size() < 6 ? 6 - digits.size() : 0, '0');
  const std::filesystem::path file = folder / "segments" / (digits + ".kvseg");
  std::optional<std::string> bytes = OwnBytes(file);
  constexpr int64_t kMost = 1 << 20;
  if (!bytes || place.parts < 1 || place.parts > 64 || place.part_bytes < 0 || place.part_bytes > kMost) return;
  if (place.offset < 0 || place.offset > kMost) return;
  const int64_t begin = place.offset + store::RecordHeaderBytes(place.parts);
  if (begin + place.parts * place.part_bytes > std::ssize(*bytes)) return;
  const auto payload = std::as_bytes(std::span(*bytes))
                           .subspan(static_cast<size_t>(begin), static_cast<size_t>(place.parts * place.part_bytes));
  store::RecordHeader header{
      static_cast<PayloadKind>(place.kind),      place.block, static_cast<int32_t>(place.page), 0, place.part_bytes,
      store::PartChecksums(payload, place.parts)};
  constexpr int64_t kAtTokens = 28;
  std::memcpy(&header.tokens, bytes->data() + place.offset + kAtTokens, sizeof header.tokens);
  RightTensors(catalog, place, payload);
  const std::vector<std::byte> encoded = store::EncodeRecordHeader(header);
  std::memcpy(bytes->data() + place.offset, encoded.data(), encoded.size());
  PutBytes(file, *bytes);
  const auto update = catalog.Prepare("UPDATE pages SET part_crcs = ? WHERE block = ? AND kind = ? AND page = ?");
  if (update == nullptr) return;
  sqlite3_bind_blob(update.get(), 1, header.part_crcs.data(), static_cast<int>(4 * header.part_crcs.size()),
                    SQLITE_TRANSIENT);
  sqlite3_bind_int64(update.get(), 2, place.block);
  sqlite3_bind_int64(update.get(), 3, place.kind);
  sqlite3_bind_int64(update.get(), 4, place.page);
  sqlite3_step(update.get());
}

}  // namespace

void ChangeRows(Choices& choices, const std::filesystem::path& folder) {
  PlainCatalog catalog(folder);
  if (!catalog.ok()) return;
  if (choices.ConsumeIntegralInRange(0, 7) == 7) catalog.KeepLog();
  for (int left = choices.ConsumeIntegralInRange(1, 3); left > 0; --left) catalog.Run(Statement(choices));
}

void RightRows(const std::filesystem::path& folder) {
  PlainCatalog catalog(folder);
  if (catalog.ok()) RightRowsOf(catalog);
}

void RightRecords(const std::filesystem::path& folder) {
  PlainCatalog catalog(folder);
  if (!catalog.ok()) return;
  for (const Place& place : PlacesIn(catalog)) RightRecord(catalog, folder, place);
  catalog.Run("UPDATE blocks SET token_crc = crc32c(token_ids)");
  RightRowsOf(catalog);
}

}  // namespace everlong::fuzz
