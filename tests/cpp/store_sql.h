// A catalog as another program reads and changes it: with plain SQL.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace everlong::store {

class PlainSql {
 public:
  explicit PlainSql(const std::filesystem::path& file) {
    EXPECT_EQ(sqlite3_open(file.c_str(), &connection_), SQLITE_OK);
  }
  ~PlainSql() { sqlite3_close(connection_); }
  PlainSql(const PlainSql&) = delete;
  PlainSql& operator=(const PlainSql&) = delete;

  // Run statements; return how many rows the last one changed.
  int Run(const char* sql) {
    EXPECT_EQ(sqlite3_exec(connection_, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(connection_);
    return sqlite3_changes(connection_);
  }

  // A row of an answer.
  struct Row {
    sqlite3_stmt* statement;
    [[nodiscard]] int64_t Integer(int column) const { return sqlite3_column_int64(statement, column); }
    [[nodiscard]] double Real(int column) const { return sqlite3_column_double(statement, column); }
    [[nodiscard]] std::string Bytes(int column) const {
      const auto* data = static_cast<const char*>(sqlite3_column_blob(statement, column));
      return {data == nullptr ? "" : data, static_cast<size_t>(sqlite3_column_bytes(statement, column))};
    }
  };
  // Call each(row) for every row; return how many there are.
  template <class Each>
  int Rows(const char* sql, const Each& each) {
    sqlite3_stmt* statement = nullptr;
    EXPECT_EQ(sqlite3_prepare_v2(connection_, sql, -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(connection_);
    int count = 0;
    for (; sqlite3_step(statement) == SQLITE_ROW; ++count) each(Row{statement});
    sqlite3_finalize(statement);
    return count;
  }

 private:
  sqlite3* connection_ = nullptr;
};

}  // namespace everlong::store
