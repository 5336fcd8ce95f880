// SQLite as owned values: a connection, its queries and its transactions. A connection caches its prepared statements.
// A query is reset when it goes out of scope. A transaction rolls back unless it was committed. Not thread-safe: only
// one thread at a time may use a connection.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "everlong/base/file.h"
#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong {

class Database;

// Return what a column holds of a value: integers and enums as int64, vectors of numbers as their bytes.
template <class Value>
auto ColumnValue(const Value& value) {
  if constexpr (std::is_enum_v<Value> || std::is_integral_v<Value>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::is_floating_point_v<Value>) {
    return double{value};
  } else if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
    return std::string_view(value);
  } else {
    return std::as_bytes(std::span(value));
  }
}

// A prepared statement in use. At most one query of the same text may be in use at a time.
class Query {
 public:
  ~Query();
  Query(Query&& other) noexcept;
  Query& operator=(Query&&) = delete;
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Bind the next parameters; the values are copied. Step returns the error of a bind that failed.
  template <class... Values>
  Query& Bind(const Values&... values) {
    (BindOne(ColumnValue(values)), ...);
    return *this;
  }
  // Start binding at the first parameter again.
  void Rewind();

  Result<bool> Step();  // whether there is a row
  Status Run();         // runs to the end and drops the rows
  // Call `visit` for every row. It may return a Status, and one that is not ok ends the query.
  template <class Visit>
  Status ForEach(const Visit& visit) {
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, Step());
      if (!more) return OkStatus();
      if constexpr (std::is_void_v<decltype(visit())>) {
        visit();
      } else {
        EVERLONG_RETURN_IF_ERROR(visit());
      }
    }
  }

  // Columns of the row, from 0, valid until the next Step. A column of another type reads as 0 or empty.
  [[nodiscard]] int64_t Int64(int column) const;
  [[nodiscard]] double Double(int column) const;
  [[nodiscard]] std::string Text(int column) const;
  [[nodiscard]] std::span<const std::byte> Blob(int column) const;

 private:
  friend class Database;
  Query(const Database* database, sqlite3_stmt* statement) : database_(database), statement_(statement) {}
  void BindOne(int64_t value);
  void BindOne(double value);
  void BindOne(std::string_view text);
  void BindOne(std::span<const std::byte> blob);
  void Check(int code);

  const Database* database_;
  sqlite3_stmt* statement_;
  int parameters_ = 0;
  int bind_error_ = SQLITE_OK;
};

class Transaction;

class Database {
 public:
  // Waits up to ten seconds for another process' lock. The file is input: nothing stored in it may run (triggers,
  // views, functions of its schema), and no link is followed to it or to its log. kCorrupt for a file that is none of
  // its own: a link, or a file of several names.
  static Result<Database> Open(const FilePath& file, int flags);
  // The same, of a file that nobody changes: no lock is taken, nothing is made beside it.
  static Result<Database> OpenUnchanging(const FilePath& file);
  // `name` is what errors call it.
  static Result<Database> OpenInRam(std::string name);

  // `sql` must outlive the connection, so pass a literal.
  Result<Query> Prepare(std::string_view sql);
  Status Execute(const char* sql);
  // Run one statement with these values to its end.
  template <class... Values>
  Status Run(std::string_view sql, const Values&... values) {
    EVERLONG_ASSIGN_OR_RETURN(Query query, Prepare(sql));
    return query.Bind(values...).Run();
  }
  // Return how many rows the last INSERT, UPDATE or DELETE that ended has changed.
  [[nodiscard]] int64_t Changes() const { return sqlite3_changes(connection_.get()); }
  // Make `target`, which is empty, a copy of this database as this connection sees it: page by page, without a look at
  // the rows. Others may write meanwhile. After an error `target` holds nothing of use.
  Status CopyPagesTo(Database& target);
  // Write the file's bytes into `target`, which is empty, with large reads: several times as fast. Return false, and
  // write nothing, where the file alone is not all of the database: where a reader keeps the log's changes out of it,
  // or others commit meanwhile. Nobody can write while it copies. Not within a transaction.
  Result<bool> CopyFileTo(const UniqueFd& target, const FilePath& name);
  // Bound the pages of the file that stay in RAM. A database in RAM has all of its pages there.
  Status SetCacheBytes(int64_t bytes);
  // Return the RAM that the pages take now.
  [[nodiscard]] int64_t RamBytes();
  [[nodiscard]] const std::string& name() const { return name_; }

  // Return what the last failed call on this connection means. kCorrupt: a damaged file or a foreign schema. kBusy: a
  // lock held elsewhere. kIoError with the system's text: everything else.
  [[nodiscard]] Status Error(int code) const;

 private:
  friend class Transaction;
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };

  static Result<Database> Connect(const std::string& file_or_uri, int flags, const char* vfs, std::string name);

  std::string name_;
  FilePath file_;           // its folder stays open as long as the connection
  int64_t page_bytes_ = 0;  // as RamBytes saw them last
  std::unique_ptr<sqlite3, Close> connection_;
  std::map<std::string_view, std::unique_ptr<sqlite3_stmt, Finalize>> statements_;
};

class Transaction {
 public:
  // A read within another transaction is a part of that.
  enum class Kind { kRead, kWrite };
  static Result<Transaction> Begin(Database& database, Kind kind);
  ~Transaction();
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  Status Commit();

 private:
  explicit Transaction(Database* database) : database_(database) {}
  Database* database_;  // null after the commit, and in another transaction
};

}  // namespace everlong
