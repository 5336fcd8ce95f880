// The catalog of a memory: which blocks there are and where their pages lie. Its commit is the commit of the memory.
// SQLite, in a file (WAL, synchronous=FULL) or in RAM. Every row carries a CRC-32C of its values (docs/format.md),
// since SQLite finds damaged structure but not a damaged value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"
#include "sqlite.h"

namespace everlong::store {

// Where a page lies and what its parts must hash to.
struct PageRow {
  int32_t segment = 0;
  int64_t offset = 0;  // of its record
  int64_t part_bytes = 0;
  std::vector<uint32_t> part_crcs;
};

struct PageKey {
  int64_t block = 0;
  int32_t page = 0;
};

// Thread-safe: one connection behind one mutex, held for a lookup or a commit and never during payload I/O.
class Catalog {
 public:
  static Result<std::unique_ptr<Catalog>> CreateInRam();
  // Makes an empty catalog; `file` must not exist.
  static Result<std::unique_ptr<Catalog>> Create(const std::filesystem::path& file);
  // kCorrupt names the file. A reader works beside a writer, and without the right to write to the folder.
  static Result<std::unique_ptr<Catalog>> Open(const std::filesystem::path& file, bool read_only);

  // The id of the block that Insert takes next: one more than any that was ever given.
  [[nodiscard]] Result<int64_t> NextBlockId();
  // Highest segment that a row names, 0 without rows.
  [[nodiscard]] Result<int32_t> NewestSegment();
  // Durable on return. pages[i] is page i; `draft` has been checked.
  Status Insert(int64_t id, const BlockDraft& draft, std::span<const PageRow> pages);

  [[nodiscard]] Result<std::vector<BlockInfo>> Blocks();
  [[nodiscard]] Result<BlockInfo> Block(int64_t id);
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t id);
  // The rows of these pages as of one moment, in the order asked for.
  [[nodiscard]] Result<std::vector<PageRow>> Locate(std::span<const PageKey> pages);
  // All or none; durable on return.
  Status Forget(std::span<const int64_t> ids);

 private:
  // How the file is read when SQLite cannot have its shared files beside it: as one that never changes. `seen` is what
  // the file looked like then; when it looks different the connection is opened anew.
  struct FileState {
    int64_t size = 0;
    int64_t modified_ns = 0;
    uint64_t inode = 0;
    bool has_wal = false;
    bool operator==(const FileState&) const = default;
  };
  struct BlockRow;

  explicit Catalog(Database database) : database_(std::move(database)) {}
  static FileState Look(const std::filesystem::path& file);
  Status OpenForReading();
  Status Refresh();
  Status Verify();
  Result<std::optional<BlockRow>> FindBlock(int64_t id);
  Result<BlockRow> LiveBlock(int64_t id);

  std::mutex mutex_;
  Database database_;
  std::filesystem::path file_;             // set for a reader
  std::optional<FileState> immutable_as_;  // set while the file is read as one that never changes
};

}  // namespace everlong::store
