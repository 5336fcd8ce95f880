#include "catalog_file.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "catalog_rows.h"

namespace everlong::store {
namespace {

constexpr int32_t kApplicationId = 0x45564C47;  // "EVLG" in the header of the file
constexpr int32_t kOldestSchema = 1;

// `role` came with the second schema.
constexpr const char* kFirstSchema = R"sql(
  PRAGMA application_id = 1163283527;
  CREATE TABLE blocks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    state INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    span_begin INTEGER NOT NULL,
    span_end INTEGER NOT NULL,
    sink_tokens INTEGER NOT NULL,
    created_at REAL NOT NULL,
    pages INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    token_crc INTEGER NOT NULL,
    source TEXT NOT NULL,
    role INTEGER NOT NULL,
    token_ids BLOB NOT NULL
  );
  CREATE TABLE tags (
    block INTEGER NOT NULL,
    position INTEGER NOT NULL,
    tag TEXT NOT NULL,
    PRIMARY KEY (block, position)
  ) WITHOUT ROWID;
  CREATE TABLE pages (
    block INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    page INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    record_offset INTEGER NOT NULL,
    record_bytes INTEGER NOT NULL,
    part_bytes INTEGER NOT NULL,
    part_crcs BLOB NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (block, kind, page)
  ) WITHOUT ROWID;
)sql";
// What the second schema adds to the first one.
constexpr const char* kSecondSchema = R"sql(
  PRAGMA user_version = 2;
  CREATE TABLE edges (
    source INTEGER NOT NULL,
    target INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    weight REAL NOT NULL,
    time REAL NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (source, target, kind)
  ) WITHOUT ROWID;
  CREATE INDEX edges_by_target ON edges (target);
  CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    level INTEGER NOT NULL,
    count INTEGER NOT NULL,
    square_sum REAL NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    crc INTEGER NOT NULL,
    vector BLOB NOT NULL,
    linear_sum BLOB NOT NULL
  );
  CREATE INDEX nodes_by_kind ON nodes (kind);
  CREATE TABLE tensors (
    block INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind INTEGER NOT NULL,
    dtype TEXT NOT NULL,
    shape BLOB NOT NULL,
    data_offset INTEGER NOT NULL,
    data_bytes INTEGER NOT NULL,
    data_crc INTEGER NOT NULL,
    record_tensors INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (block, name)
  ) WITHOUT ROWID;
)sql";
static_assert(kApplicationId == 1163283527 && kCatalogSchema == 2, "the schemas' texts hold the same numbers");

constexpr const char* kAddRole = "ALTER TABLE blocks ADD COLUMN role INTEGER NOT NULL DEFAULT 0";

Status MakeTables(Database& database) {
  EVERLONG_RETURN_IF_ERROR(database.Execute(kFirstSchema));
  return database.Execute(kSecondSchema);
}

// The tables and indexes of a catalog as they were declared: type, name, table and text of each.
using Declared = std::vector<std::array<std::string, 4>>;

Result<Declared> DeclaredIn(Database& database) {
  Declared schema;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare("SELECT type, name, tbl_name, sql FROM sqlite_master"));
  EVERLONG_RETURN_IF_ERROR(
      query.ForEach([&] { schema.push_back({query.Text(0), query.Text(1), query.Text(2), query.Text(3)}); }));
  return schema;
}

// The same in order, with texts without runs of whitespace.
Declared InOrder(Declared schema) {
  for (auto& object : schema) {
    std::string& text = object.back();
    std::ranges::replace_if(text, [](char c) { return c == '\n' || c == '\t' || c == '\r'; }, ' ');
    const auto both_blank = [](char a, char b) { return a == ' ' && b == ' '; };
    text.erase(std::unique(text.begin(), text.end(), both_blank), text.end());
  }
  std::ranges::sort(schema);
  return schema;
}

// Return the schemas that a catalog of this version can have: as it was made, and as a migration left it.
Result<std::vector<Declared>> DeclaredAs(int64_t version) {
  std::string oldest = kFirstSchema;
  constexpr std::string_view kRole = "    role INTEGER NOT NULL,\n";
  oldest.erase(oldest.find(kRole), kRole.size());
  const std::string migrated = oldest + kAddRole + ";" + kSecondSchema;
  const std::string newest = std::string(kFirstSchema) + kSecondSchema;
  std::vector<Declared> schemas;
  for (const std::string& sql : version < 2 ? std::vector{oldest} : std::vector{newest, migrated}) {
    EVERLONG_ASSIGN_OR_RETURN(Database database, Database::OpenInRam("a new catalog"));
    EVERLONG_RETURN_IF_ERROR(database.Execute(sql.c_str()));
    EVERLONG_ASSIGN_OR_RETURN(Declared made, DeclaredIn(database));
    schemas.push_back(InOrder(std::move(made)));
  }
  return schemas;
}

// Return whether a catalog of this version is declared so. What it is compared with is made once a process. Most
// catalogs are declared to the letter as the last one was.
Result<bool> IsOurs(const Declared& schema, int64_t version) {
  static std::mutex mutex;
  static std::map<int64_t, std::vector<Declared>> known;
  static std::map<int64_t, Declared> last;
  const std::scoped_lock lock(mutex);
  if (const auto same = last.find(version); same != last.end() && same->second == schema) return true;
  auto ours = known.find(version);
  if (ours == known.end()) {
    EVERLONG_ASSIGN_OR_RETURN(std::vector<Declared> made, DeclaredAs(version));
    ours = known.emplace(version, std::move(made)).first;
  }
  if (std::ranges::find(ours->second, InOrder(schema)) == ours->second.end()) return false;
  last.insert_or_assign(version, schema);
  return true;
}

constexpr std::string_view kCountTables = "SELECT count(*) FROM sqlite_master";
constexpr std::string_view kSelectHighestId = "SELECT coalesce(max(id), 0) FROM blocks";

Status ConfigureWriter(Database& database) {
  EVERLONG_RETURN_IF_ERROR(database.Execute("PRAGMA synchronous = FULL"));
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare("PRAGMA journal_mode = WAL"));
  EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
  const std::string mode = row ? query.Text(0) : "none";
  // A catalog in RAM returns "memory".
  if (mode == "wal" || mode == "memory") return OkStatus();
  return IoError("'" + database.name() + "' cannot be written with a write-ahead log here (journal mode '" + mode +
                 "')");
}

}  // namespace

Result<std::unique_ptr<CatalogFile>> CatalogFile::CreateInRam() {
  EVERLONG_ASSIGN_OR_RETURN(Database database, Database::OpenInRam("catalog in RAM"));
  // What is deleted gives its pages back with the commit.
  EVERLONG_RETURN_IF_ERROR(database.Execute("PRAGMA auto_vacuum = FULL"));
  EVERLONG_RETURN_IF_ERROR(ConfigureWriter(database));
  // Deleted data is gone at once, without a rewrite of the file.
  EVERLONG_RETURN_IF_ERROR(database.Execute("PRAGMA secure_delete = ON"));
  EVERLONG_RETURN_IF_ERROR(MakeTables(database));
  return std::unique_ptr<CatalogFile>(new CatalogFile(std::move(database)));
}

Result<std::unique_ptr<CatalogFile>> CatalogFile::Create(const FilePath& file) {
  // SQLite gives its log files the mode of the database, and would create that readable for others.
  EVERLONG_RETURN_IF_ERROR(OpenFile(file, O_RDWR | O_CREAT | O_EXCL).status());
  EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file, SQLITE_OPEN_READWRITE));
  EVERLONG_RETURN_IF_ERROR(ConfigureWriter(database));
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database, Transaction::Kind::kWrite));
  EVERLONG_RETURN_IF_ERROR(MakeTables(database));
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  return std::unique_ptr<CatalogFile>(new CatalogFile(std::move(database), file));
}

Result<std::unique_ptr<CatalogFile>> CatalogFile::Open(const FilePath& file, bool read_only) {
  EVERLONG_ASSIGN_OR_RETURN(const FileKind kind, KindOf(file));
  if (kind != FileKind::kFile) return CorruptError("catalog '" + file.string() + "' is missing");
  // SQLite would take the log of an empty file away, and with it what the file has lost.
  const int64_t size = StampOf(file).size;
  if (size == 0) return CorruptError("catalog '" + file.string() + "' is empty");
  // A check of it takes RAM for each of its pages.
  EVERLONG_ASSIGN_OR_RETURN(const int64_t on_disk, AllocatedBytes(file));
  if (size > kBelievedBytes && on_disk < size / kMostCompressed) {
    return CorruptError("catalog '" + file.string() + "' is nearly all holes");
  }
  // Whoever closes it last takes its log away: one that is there was not closed, or is open elsewhere. The check of the
  // whole file costs what the file holds; without it, what is damaged shows when it is read, and in CheckIntegrity.
  const bool closed = !Exists(file + "-wal");
  if (read_only) {
    std::unique_ptr<CatalogFile> catalog(new CatalogFile(Database(), file, true));
    EVERLONG_RETURN_IF_ERROR(catalog->OpenForReading());
    EVERLONG_RETURN_IF_ERROR(catalog->Verify(!closed));
    return catalog;
  }
  EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file, SQLITE_OPEN_READWRITE));
  std::unique_ptr<CatalogFile> catalog(new CatalogFile(std::move(database), file));
  EVERLONG_RETURN_IF_ERROR(catalog->Verify(!closed));
  EVERLONG_RETURN_IF_ERROR(ConfigureWriter(catalog->database_));
  return catalog;
}

Status CatalogFile::Remove(const FilePath& file) {
  for (const char* const suffix : {"", "-journal", "-wal", "-shm"}) {
    EVERLONG_RETURN_IF_ERROR(RemoveFile(file + suffix));
  }
  return OkStatus();
}

bool CatalogFile::HoldsNothing(const FilePath& file) {
  const auto count = [&file]() -> Result<int64_t> {
    EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file, SQLITE_OPEN_READWRITE));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t tables, SelectNumber(database, kCountTables));
    if (tables == 0) return 0;
    EVERLONG_ASSIGN_OR_RETURN(const int64_t application, SelectNumber(database, "PRAGMA application_id"));
    return application == kApplicationId ? SelectNumber(database, kSelectSequence) : Result<int64_t>(tables);
  };
  const Result<int64_t> held = count();
  return held.ok() && *held == 0;
}

Result<int64_t> SchemaOf(Database& database) { return SelectNumber(database, "PRAGMA user_version"); }

Status AddSecondSchema(Database& database) {
  EVERLONG_RETURN_IF_ERROR(database.Execute(kAddRole));
  return database.Execute(kSecondSchema);
}

Result<CatalogFile::Turn> CatalogFile::Hold() {
  Turn turn{std::unique_lock(mutex_), database_, std::nullopt};
  EVERLONG_RETURN_IF_ERROR(Refresh());
  return turn;
}

Result<CatalogFile::Turn> CatalogFile::Read() {
  EVERLONG_ASSIGN_OR_RETURN(Turn turn, Hold());
  EVERLONG_ASSIGN_OR_RETURN(Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  turn.transaction.emplace(std::move(snapshot));
  return turn;
}

Result<CatalogFile::Turn> CatalogFile::Write() {
  Turn turn{std::unique_lock(mutex_), database_, std::nullopt};
  EVERLONG_ASSIGN_OR_RETURN(Transaction change, Transaction::Begin(database_, Transaction::Kind::kWrite));
  turn.transaction.emplace(std::move(change));
  return turn;
}

Result<std::unique_ptr<CatalogFile>> CatalogFile::AsOfNow() const {
  std::unique_ptr<CatalogFile> file(new CatalogFile(Database(), file_, true));
  EVERLONG_RETURN_IF_ERROR(file->OpenForReading());
  EVERLONG_ASSIGN_OR_RETURN(Transaction reading, Transaction::Begin(file->database_, Transaction::Kind::kRead));
  file->as_of_.emplace(std::move(reading));
  EVERLONG_RETURN_IF_ERROR(SchemaOf(file->database_).status());  // the first read chooses the moment
  return file;
}

CatalogFile::State CatalogFile::Look(const FilePath& file) { return {StampOf(file), Exists(file + "-wal")}; }

Status CatalogFile::OpenForReading() {
  const State seen = Look(file_);
  EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file_, SQLITE_OPEN_READONLY));
  const Result<int64_t> probe = SelectNumber(database, "PRAGMA schema_version");
  immutable_as_.reset();
  if (!probe.ok() && probe.status().code() == StatusCode::kIoError && !seen.has_wal) {
    // No writer and no right to make the log's files: the file is whole by itself.
    EVERLONG_ASSIGN_OR_RETURN(database, Database::OpenUnchanging(file_));
    immutable_as_ = seen;
  } else if (!probe.ok()) {
    return probe.status();
  }
  database_ = std::move(database);
  ++openings_;
  return cache_bytes_ ? database_.SetCacheBytes(*cache_bytes_) : OkStatus();
}

Status CatalogFile::Refresh() {
  if (!immutable_as_ || Look(file_) == *immutable_as_) return OkStatus();
  return OpenForReading();
}

Status CatalogFile::Verify(bool whole_file) {
  EVERLONG_ASSIGN_OR_RETURN(Transaction reading, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t application, SelectNumber(database_, "PRAGMA application_id"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t version, SelectNumber(database_, "PRAGMA user_version"));
  if (application != kApplicationId) return CorruptError("'" + database_.name() + "' is not a catalog of everlong");
  if (version > kCatalogSchema) {
    return NewerFormatError("catalog '" + database_.name() + "' has format " + std::to_string(version) +
                            "; this everlong reads up to " + std::to_string(kCatalogSchema) + ": update it");
  }
  if (version < kOldestSchema) {
    return CorruptError("catalog '" + database_.name() + "' has format " + std::to_string(version));
  }
  // Before any table is read: a column of somebody else's may compute what its author likes.
  EVERLONG_ASSIGN_OR_RETURN(const Declared schema, DeclaredIn(database_));
  EVERLONG_ASSIGN_OR_RETURN(const bool is_ours, IsOurs(schema, version));
  if (!is_ours) {
    return CorruptError("catalog '" + database_.name() + "' has a foreign schema");
  }
  EVERLONG_RETURN_IF_ERROR(CheckStructure(whole_file));
  EVERLONG_RETURN_IF_ERROR(CheckIds());
  return reading.Commit();
}

Status CatalogFile::CheckStructure(bool whole_file) {
  if (whole_file) {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare("PRAGMA quick_check(1)"));
    EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
    const std::string found = row ? query.Text(0) : "no answer";
    if (found == "ok") return OkStatus();
    return CorruptError("catalog '" + database_.name() + "' is damaged: " + found);
  }
  EVERLONG_ASSIGN_OR_RETURN(const int64_t pages, SelectNumber(database_, "PRAGMA page_count"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t page_bytes, SelectNumber(database_, "PRAGMA page_size"));
  const int64_t size = Look(file_).file.size;
  if (size >= pages * page_bytes) return OkStatus();
  return CorruptError("catalog '" + database_.name() + "' is cut short: it has " + std::to_string(size) +
                      " bytes, expected " + std::to_string(pages * page_bytes));
}

Status CatalogFile::CheckIds() {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t highest, SelectNumber(database_, kSelectHighestId));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t sequence, SelectNumber(database_, kSelectSequence));
  const auto damaged = [this](const std::string& what) {
    return CorruptError("catalog '" + database_.name() + "' is damaged: " + what);
  };
  if (sequence < highest) {
    return damaged("block " + std::to_string(highest) + " is above the last id given, " + std::to_string(sequence));
  }
  if (sequence > kLargestBlockId) return damaged("the last id given is " + std::to_string(sequence));
  return OkStatus();
}

Result<std::vector<std::string>> CatalogFile::CheckIntegrity() {
  EVERLONG_ASSIGN_OR_RETURN(const Turn turn, Hold());
  std::vector<std::string> complaints;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare("PRAGMA integrity_check"));
  EVERLONG_RETURN_IF_ERROR(query.ForEach([&] {
    if (std::string text = query.Text(0); text != "ok") complaints.push_back(std::move(text));
  }));
  return complaints;
}

Status CatalogFile::SetCacheBytes(int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  cache_bytes_ = bytes;
  return database_.SetCacheBytes(bytes);
}

int64_t CatalogFile::RamBytes() {
  const std::scoped_lock lock(mutex_);
  return database_.RamBytes();
}

Status CatalogFile::Rewrite() {
  const std::scoped_lock lock(mutex_);
  if (file_.path().empty()) return OkStatus();
  if (Status rewritten = database_.Execute("VACUUM"); !rewritten.ok()) {
    // A full disk may have room for it once the log is empty.
    if (rewritten.code() != StatusCode::kIoError || !EmptyLogLocked().ok()) return rewritten;
    EVERLONG_RETURN_IF_ERROR(database_.Execute("VACUUM"));
  }
  return EmptyLogLocked();
}

Status CatalogFile::EmptyLog() {
  const std::scoped_lock lock(mutex_);
  return EmptyLogLocked();
}

Status CatalogFile::EmptyLogLocked() {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t busy, SelectNumber(database_, "PRAGMA wal_checkpoint(TRUNCATE)"));
  if (busy == 0) return OkStatus();
  return BusyError("'" + database_.name() + "': a reader kept the log in use, forgotten rows are still in it: again");
}

Status CatalogFile::Snapshot(const FilePath& file) {
  // SQLite would create it readable for others.
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd made, OpenFile(file, O_RDWR | O_CREAT | O_EXCL));
  bool copied = false;
  if (!read_only_) {
    EVERLONG_ASSIGN_OR_RETURN(const Turn turn, Hold());
    EVERLONG_ASSIGN_OR_RETURN(copied, turn.database.CopyFileTo(made, file));
  }
  if (!copied) {
    EVERLONG_ASSIGN_OR_RETURN(Database copy, Database::Open(file, SQLITE_OPEN_READWRITE));
    // Until it is whole it is nobody's: it needs no journal, and is made durable once.
    EVERLONG_RETURN_IF_ERROR(copy.Execute("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF"));
    EVERLONG_ASSIGN_OR_RETURN(const Turn turn, Read());
    EVERLONG_RETURN_IF_ERROR(turn.database.CopyPagesTo(copy));
  }
  return SyncFile(made, file);
}

}  // namespace everlong::store
