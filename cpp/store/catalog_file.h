// The file of a catalog: SQLite in a file (WAL, synchronous=FULL) or in RAM. It is one connection behind one mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "everlong/base/file.h"
#include "everlong/base/sqlite.h"
#include "everlong/base/status.h"

namespace everlong::store {

// Thread-safe. A turn holds the mutex.
class CatalogFile {
 public:
  // The connection, while nobody else has it.
  struct Turn {
    std::unique_lock<std::mutex> lock;
    Database& database;
    std::optional<Transaction> transaction;  // rolled back unless it was committed
  };

  static Result<std::unique_ptr<CatalogFile>> CreateInRam();
  // Makes an empty catalog; `file` must not exist.
  static Result<std::unique_ptr<CatalogFile>> Create(const FilePath& file);
  // kCorrupt names the file. A reader works beside a writer, and without the right to write to the folder.
  static Result<std::unique_ptr<CatalogFile>> Open(const FilePath& file, bool read_only);

  // Open the file once more, to read it as it is now: it shows nothing that is committed later. While it is there, the
  // log grows, and Rewrite is kBusy.
  [[nodiscard]] Result<std::unique_ptr<CatalogFile>> AsOfNow() const;

  // Whether a file has nothing that anybody could miss: it is what a crash left of Create, and no block was ever in it.
  static bool HoldsNothing(const FilePath& file);
  // The file goes, and what SQLite keeps beside it. No file is no failure.
  static Status Remove(const FilePath& file);

  // Return a turn without a transaction; one that reads a single state of the file; one that changes it.
  [[nodiscard]] Result<Turn> Hold();
  [[nodiscard]] Result<Turn> Read();
  [[nodiscard]] Result<Turn> Write();

  // Return the result of SQLite's own check of the whole file; empty when it is whole.
  [[nodiscard]] Result<std::vector<std::string>> CheckIntegrity();
  // Write the file and its log anew, without the remains of deleted rows. kBusy while a reader uses the log. A catalog
  // in RAM has no remains.
  Status Rewrite();
  // Bound the pages of the file that stay in RAM.
  Status SetCacheBytes(int64_t bytes);
  // Return the RAM that it takes: all pages of a catalog in RAM, else SQLite's cache.
  [[nodiscard]] int64_t RamBytes();
  // Bring the log's changes into the file, and empty it. kBusy while a reader uses it.
  Status EmptyLog();
  // Copy this catalog, as it is now, page by page to `file`, which must not exist. Durable on return. What deleted rows
  // have left in the pages comes along, until Rewrite.
  Status Snapshot(const FilePath& file);

  [[nodiscard]] const std::string& name() const { return database_.name(); }
  [[nodiscard]] bool read_only() const { return read_only_; }
  // Return how often a reader has opened the file. Call it in a turn.
  [[nodiscard]] int64_t openings() const { return openings_; }

 private:
  // The state of a file that is read as one that never changes, because SQLite cannot make its shared files beside it.
  // If the file looks different later, the connection is opened anew.
  struct State {
    FileStamp file;
    bool has_wal = false;
    bool operator==(const State&) const = default;
  };

  explicit CatalogFile(Database database, FilePath file = {}, bool read_only = false)
      : database_(std::move(database)), file_(std::move(file)), read_only_(read_only) {}
  static State Look(const FilePath& file);
  Status EmptyLogLocked();
  Status OpenForReading();
  Status Refresh();
  // Check that it is a catalog, with SQLite's check of its structure.
  Status Verify(bool whole_file);
  Status CheckStructure(bool whole_file);
  Status CheckIds();

  std::mutex mutex_;
  Database database_;
  FilePath file_;  // none in RAM
  bool read_only_ = false;
  std::optional<int64_t> cache_bytes_;  // SQLite's own bound where it is not set
  std::optional<State> immutable_as_;   // set while the file is read as one that never changes
  int64_t openings_ = 0;
  std::optional<Transaction> as_of_;  // set where all is read as of one moment
};

// Return the number of the tables' schema: kCatalogSchema, or an older one of a catalog that was not migrated.
Result<int64_t> SchemaOf(Database& database);
// Add what the second schema has and the first one has not.
Status AddSecondSchema(Database& database);

}  // namespace everlong::store
