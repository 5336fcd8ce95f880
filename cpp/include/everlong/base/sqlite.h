// SQLite as owned values: a connection that caches its prepared statements, a query that is reset when it goes out of
// scope, a transaction that rolls back unless it was committed. Not thread-safe: one thread at a time per connection.
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
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong {

class Database;

// A prepared statement in use. At most one of the same text at a time.
class Query {
 public:
  ~Query();
  Query(Query&& other) noexcept;
  Query& operator=(Query&&) = delete;
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Binds the next parameter; the value is copied. A failure surfaces in Step.
  Query& Bind(int64_t value);
  Query& Bind(double value);
  Query& Bind(std::string_view text);
  Query& Bind(std::span<const std::byte> blob);
  // Parameters are bound from the first one again.
  void Rewind();

  Result<bool> Step();  // whether there is a row
  Status Run();         // to the end; rows are dropped

  // Columns of the row, from 0. Valid until the next Step; another type reads as 0 or empty.
  [[nodiscard]] int64_t Int64(int column) const;
  [[nodiscard]] double Double(int column) const;
  [[nodiscard]] std::string Text(int column) const;
  [[nodiscard]] std::span<const std::byte> Blob(int column) const;

 private:
  friend class Database;
  Query(const Database* database, sqlite3_stmt* statement) : database_(database), statement_(statement) {}
  void Check(int code);

  const Database* database_;
  sqlite3_stmt* statement_;
  int parameters_ = 0;
  int bind_error_ = SQLITE_OK;
};

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

  // `sql` must outlive the connection (a literal).
  Result<Query> Prepare(std::string_view sql);
  Status Execute(const char* sql);
  [[nodiscard]] const std::string& name() const { return name_; }
  // What its pages take in RAM: all of it, for a database there.
  [[nodiscard]] int64_t CachedBytes() const;

  // What the last failed call on this connection means. kCorrupt for a damaged file or a foreign schema, kBusy for a
  // lock held elsewhere, kIoError with the system's text for the rest.
  [[nodiscard]] Status Error(int code) const;

 private:
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };

  static Result<Database> Connect(const std::string& file_or_uri, int flags, const char* vfs, std::string name);

  std::string name_;
  FilePath file_;  // its folder stays open as long as the connection
  std::unique_ptr<sqlite3, Close> connection_;
  std::map<std::string_view, std::unique_ptr<sqlite3_stmt, Finalize>> statements_;
};

class Transaction {
 public:
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
  Database* database_;  // null once committed
};

}  // namespace everlong
