#include "everlong/base/sqlite.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "everlong/base/file.h"
#include "sqlite_vfs.h"

namespace everlong {
namespace {

constexpr int kBusyTimeoutMs = 10'000;
constexpr int kAttached = 1;  // VACUUM attaches one
constexpr int kMostSqlBytes = 1 << 16;
constexpr std::string_view kRollback = "ROLLBACK";

// Check that the database and what lies beside it are files of their own, which nobody has by another name.
Status RequireOwn(const FilePath& file) {
  for (const char* const suffix : {"", "-wal", "-shm"}) {
    const FilePath own = file + suffix;
    const Result<int64_t> names = LinkCount(own);
    if (names.status().code() == StatusCode::kNotFound && *suffix != '\0') continue;
    EVERLONG_RETURN_IF_ERROR(names.status());
    if (*names == 1) continue;
    return CorruptError("'" + own.string() + "' has another name, too, and is not opened: it may be another's file");
  }
  return OkStatus();
}

// `path` as the path of a "file:" URI.
std::string UriPath(const std::string& path) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string uri = "file:";
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '%' || c == '?' || c == '#') {
      uri.append({'%', kHex[byte >> 4U], kHex[byte & 15U]});
    } else {
      uri.push_back(c);
    }
  }
  return uri;
}

}  // namespace

Query::~Query() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

Query::Query(Query&& other) noexcept
    : database_(other.database_),
      statement_(std::exchange(other.statement_, nullptr)),
      parameters_(other.parameters_),
      bind_error_(other.bind_error_) {}

void Query::Check(int code) {
  if (bind_error_ == SQLITE_OK) bind_error_ = code;
}

void Query::BindOne(int64_t value) { Check(sqlite3_bind_int64(statement_, ++parameters_, value)); }

void Query::BindOne(double value) { Check(sqlite3_bind_double(statement_, ++parameters_, value)); }

void Query::BindOne(std::string_view text) {
  // A null pointer would bind NULL, not the empty text.
  const char* data = text.empty() ? "" : text.data();
  Check(sqlite3_bind_text64(statement_, ++parameters_, data, text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

void Query::BindOne(std::span<const std::byte> blob) {
  ++parameters_;
  Check(blob.empty() ? sqlite3_bind_zeroblob(statement_, parameters_, 0)
                     : sqlite3_bind_blob64(statement_, parameters_, blob.data(), blob.size(), SQLITE_TRANSIENT));
}

void Query::Rewind() {
  sqlite3_reset(statement_);
  parameters_ = 0;
}

Result<bool> Query::Step() {
  if (bind_error_ != SQLITE_OK) return database_->Error(bind_error_);
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_->Error(code);
}

Status Query::Run() {
  return ForEach([] {});
}

int64_t Query::Int64(int column) const { return sqlite3_column_int64(statement_, column); }

double Query::Double(int column) const { return sqlite3_column_double(statement_, column); }

std::string Query::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (text == nullptr) return {};
  return {text, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

std::span<const std::byte> Query::Blob(int column) const {
  const void* blob = sqlite3_column_blob(statement_, column);
  if (blob == nullptr) return {};
  return {static_cast<const std::byte*>(blob), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

Result<Database> Database::Open(const FilePath& file, int flags) {
  // SQLite itself never opens a link. Opened here and closed again, a file would lose the locks of SQLite's that this
  // process has on it: it is looked at by name.
  EVERLONG_RETURN_IF_ERROR(RequireOwn(file));
  EVERLONG_ASSIGN_OR_RETURN(Database database, Connect(file.SystemPath(), flags, BeneathVfs(), file.string()));
  database.file_ = file;
  return database;
}

Result<Database> Database::OpenUnchanging(const FilePath& file) {
  EVERLONG_RETURN_IF_ERROR(RequireOwn(file));
  EVERLONG_ASSIGN_OR_RETURN(Database database,
                            Connect(UriPath(file.SystemPath()) + "?immutable=1", SQLITE_OPEN_READONLY | SQLITE_OPEN_URI,
                                    BeneathVfs(), file.string()));
  database.file_ = file;
  return database;
}

Result<Database> Database::OpenInRam(std::string name) {
  return Connect(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr, std::move(name));
}

Result<Database> Database::Connect(const std::string& file_or_uri, int flags, const char* vfs, std::string name) {
  Database database;
  database.name_ = std::move(name);
  sqlite3* connection = nullptr;
  const int code = sqlite3_open_v2(file_or_uri.c_str(), &connection, flags | SQLITE_OPEN_NOMUTEX, vfs);
  database.connection_.reset(connection);  // to be closed even when opening failed
  if (code != SQLITE_OK) return database.Error(code);
  sqlite3_extended_result_codes(connection, 1);
  sqlite3_busy_timeout(connection, kBusyTimeoutMs);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_limit(connection, SQLITE_LIMIT_ATTACHED, kAttached);
  sqlite3_limit(connection, SQLITE_LIMIT_TRIGGER_DEPTH, 0);
  sqlite3_limit(connection, SQLITE_LIMIT_SQL_LENGTH, kMostSqlBytes);
  EVERLONG_RETURN_IF_ERROR(database.Execute("PRAGMA cell_size_check = ON"));
  return database;
}

Result<Query> Database::Prepare(std::string_view sql) {
  auto found = statements_.find(sql);
  if (found == statements_.end()) {
    sqlite3_stmt* statement = nullptr;
    const int code = sqlite3_prepare_v3(connection_.get(), sql.data(), static_cast<int>(sql.size()),
                                        SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    // The statements are ours, so one that does not compile has met a foreign schema.
    if (code == SQLITE_ERROR) {
      return CorruptError("'" + name_ + "' has a foreign schema: " + sqlite3_errmsg(connection_.get()));
    }
    if (code != SQLITE_OK) return Error(code);
    found = statements_.emplace(sql, std::unique_ptr<sqlite3_stmt, Finalize>(statement)).first;
  }
  return Query(this, found->second.get());
}

Status Database::Execute(const char* sql) {
  const int code = sqlite3_exec(connection_.get(), sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? OkStatus() : Error(code);
}

Status Database::CopyPagesTo(Database& target) {
  constexpr int kAllPages = -1;
  sqlite3_backup* const copying = sqlite3_backup_init(target.connection_.get(), "main", connection_.get(), "main");
  if (copying == nullptr) return target.Error(sqlite3_extended_errcode(target.connection_.get()));
  const int code = sqlite3_backup_step(copying, kAllPages);
  const int finished = sqlite3_backup_finish(copying);
  if (code == SQLITE_DONE && finished == SQLITE_OK) return OkStatus();
  return target.Error(finished != SQLITE_OK ? finished : code);
}

Result<bool> Database::CopyFileTo(const UniqueFd& target, const FilePath& name) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  const auto number = [this](std::string_view sql) -> Result<int64_t> {
    EVERLONG_ASSIGN_OR_RETURN(Query query, Prepare(sql));
    EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
    return row ? query.Int64(0) : -1;
  };
  EVERLONG_ASSIGN_OR_RETURN(const int64_t before, number("PRAGMA data_version"));
  {
    EVERLONG_ASSIGN_OR_RETURN(Query query, Prepare("PRAGMA wal_checkpoint(PASSIVE)"));
    EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
    const bool all = row && query.Int64(0) == 0 && query.Int64(1) == query.Int64(2) && query.Int64(1) >= 0;
    if (!all) return false;
  }
  // From here on nobody commits, and the log has nothing that anybody could bring into the file.
  EVERLONG_ASSIGN_OR_RETURN(const Transaction alone, Transaction::Begin(*this, Transaction::Kind::kWrite));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t now, number("PRAGMA data_version"));
  if (now != before) return false;
  EVERLONG_ASSIGN_OR_RETURN(const int64_t pages, number("PRAGMA page_count"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t page_bytes, number("PRAGMA page_size"));
  // SQLite's own handle: closing another one of the file would drop the locks of this process.
  sqlite3_file* file = nullptr;
  if (sqlite3_file_control(connection_.get(), "main", SQLITE_FCNTL_FILE_POINTER, static_cast<void*>(&file)) !=
          SQLITE_OK ||
      file == nullptr || file->pMethods == nullptr) {
    return false;
  }
  std::vector<std::byte> piece(static_cast<size_t>(kPiece));
  for (int64_t at = 0; at < pages * page_bytes; at += kPiece) {
    const int64_t bytes = std::min(kPiece, pages * page_bytes - at);
    const int code = file->pMethods->xRead(file, piece.data(), static_cast<int>(bytes), at);
    if (code != SQLITE_OK) return Error(code);
    const std::span<const std::byte> read = std::span(piece).first(static_cast<size_t>(bytes));
    EVERLONG_RETURN_IF_ERROR(WriteAt(target, name, at, {&read, 1}));
  }
  return true;
}

Status Database::SetCacheBytes(int64_t bytes) {
  constexpr int64_t kKibibyte = 1024;
  return Execute(("PRAGMA cache_size = -" + std::to_string(std::max<int64_t>(1, bytes / kKibibyte))).c_str());
}

int64_t Database::RamBytes() {
  int now = 0;
  int highest = 0;  // there is none
  static_cast<void>(sqlite3_db_status(connection_.get(), SQLITE_DBSTATUS_CACHE_USED, &now, &highest, 0));
  // SQLite counts in 32 bits. Between two calls less than half of that comes or goes.
  page_bytes_ += static_cast<int32_t>(static_cast<uint32_t>(now) - static_cast<uint32_t>(page_bytes_));
  return page_bytes_;
}

Status Database::Error(int code) const {
  std::string message = "'" + name_ + "': " + sqlite3_errstr(code);
  if (connection_ != nullptr) {
    message.append(": ").append(sqlite3_errmsg(connection_.get()));
    if (const int error_number = sqlite3_system_errno(connection_.get()); error_number != 0) {
      message.append(" (").append(std::error_code(error_number, std::generic_category()).message()).append(")");
    }
  }
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_CONSTRAINT:
    case SQLITE_FORMAT:
    case SQLITE_TOOBIG:
      return CorruptError(std::move(message));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return BusyError(std::move(message));
    case SQLITE_NOMEM:
      return CapacityError(std::move(message));
    default:
      return code == SQLITE_IOERR_SHORT_READ ? CorruptError(std::move(message)) : IoError(std::move(message));
  }
}

Result<Transaction> Transaction::Begin(Database& database, Kind kind) {
  if (kind == Kind::kRead && sqlite3_get_autocommit(database.connection_.get()) == 0) return Transaction(nullptr);
  EVERLONG_RETURN_IF_ERROR(database.Prepare(kRollback).status());  // so that the destructor allocates nothing
  EVERLONG_RETURN_IF_ERROR(database.Run(kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN"));
  return Transaction(&database);
}

Transaction::~Transaction() {
  // A failed rollback needs no handling: the transaction ends in any case when the connection closes.
  if (database_ != nullptr) static_cast<void>(database_->Run(kRollback));
}

Status Transaction::Commit() {
  if (database_ == nullptr) return OkStatus();
  EVERLONG_RETURN_IF_ERROR(database_->Run("COMMIT"));
  database_ = nullptr;
  return OkStatus();
}

}  // namespace everlong
