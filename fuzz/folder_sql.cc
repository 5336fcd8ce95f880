#include "folder_sql.h"

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "everlong/base/crc32c.h"
#include "folder_tree.h"
#include "row_checksum.h"

namespace everlong::fuzz {
namespace {

std::string_view TextOf(sqlite3_value* value) {
  const auto* const text = static_cast<const char*>(sqlite3_value_blob(value));
  return {text == nullptr ? "" : text, static_cast<size_t>(sqlite3_value_bytes(value))};
}

std::span<const std::byte> BytesOf(sqlite3_value* value) {
  const std::string_view text = TextOf(value);
  return std::as_bytes(std::span(text));
}

void AddTexts(store::RowChecksum& crc, std::string_view hexadecimal) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < hexadecimal.size(); ++at) {
    std::string& text = texts.emplace_back();
    for (; at + 1 < hexadecimal.size() && hexadecimal[at] != ','; at += 2) {
      text.push_back(static_cast<char>(std::strtol(std::string(hexadecimal.substr(at, 2)).c_str(), nullptr, 16)));
    }
  }
  crc.Add(texts.size());
  for (const std::string& text : texts) crc.Add(text);
}

void RowCrc(sqlite3_context* context, int count, sqlite3_value** values) {
  const std::string types(TextOf(values[0]));
  store::RowChecksum crc;
  for (int i = 1; i < count && static_cast<size_t>(i) <= types.size(); ++i) {
    sqlite3_value* const value = values[i];
    const int64_t integer = sqlite3_value_int64(value);
    switch (types[static_cast<size_t>(i) - 1]) {
      case 'n':
        crc.Add(int64_t{static_cast<int32_t>(integer)});
        break;
      case 'u':
        crc.Add(int64_t{static_cast<uint32_t>(integer)});
        break;
      case 'r':
        crc.Add(sqlite3_value_double(value));
        break;
      case 't':
        crc.Add(std::string(TextOf(value)));
        break;
      case 'b':
        crc.Add(BytesOf(value));
        break;
      case 'h':
        AddTexts(crc, TextOf(value));
        break;
      case 'o':
        if (integer != 0) crc.Add(integer);
        break;
      default:
        crc.Add(integer);
    }
  }
  sqlite3_result_int64(context, crc.value());
}

void Crc(sqlite3_context* context, int /*count*/, sqlite3_value** values) {
  sqlite3_result_int64(context, Crc32c(BytesOf(values[0])));
}

}  // namespace

PlainCatalog::PlainCatalog(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "catalog.sqlite";
  if (!OwnBytes(file) || std::filesystem::exists(std::filesystem::symlink_status(file.string() + "-journal"))) return;
  for (const char* const suffix : {"-wal", "-shm"}) {
    const std::filesystem::path log = file.string() + suffix;
    if (std::filesystem::exists(std::filesystem::symlink_status(log)) && !OwnBytes(log)) return;
  }
  sqlite3* connection = nullptr;
  sqlite3_open_v2(file.c_str(), &connection, SQLITE_OPEN_READWRITE, nullptr);
  connection_.reset(connection);
  sqlite3_create_function(connection, "crc32c", 1, SQLITE_UTF8, nullptr, Crc, nullptr, nullptr);
  sqlite3_create_function(connection, "row_crc", -1, SQLITE_UTF8, nullptr, RowCrc, nullptr, nullptr);
  Run("PRAGMA synchronous = OFF");
}

void PlainCatalog::Run(const std::string& sql) {
  sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr);
}

void PlainCatalog::KeepLog() { sqlite3_db_config(connection_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr); }

PlainCatalog::Statement PlainCatalog::Prepare(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  sqlite3_prepare_v2(connection_.get(), sql.c_str(), -1, &statement, nullptr);
  return Statement(statement);
}

}  // namespace everlong::fuzz
