// The catalog of a memory: which blocks there are, and where their records lie. Its commit is the commit of the memory.
// It is SQLite, in a file (WAL, synchronous=FULL) or in RAM. Every row carries a CRC-32C of its values
// (docs/format.md), because SQLite finds damaged structure but not a damaged value.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "everlong/base/file.h"
#include "everlong/base/sqlite.h"
#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"
#include "record.h"
#include "tensor_rows.h"

namespace everlong::store {

// The place of a record, and the checksums of its parts.
struct PageRow {
  int32_t segment = 0;
  int64_t offset = 0;  // of its record
  int64_t part_bytes = 0;
  std::vector<uint32_t> part_crcs;
  bool operator==(const PageRow&) const = default;
};

// The most that a catalog keeps of rows in RAM, however many blocks there are.
inline constexpr int64_t kMostKnownBytes = int64_t{8} << 20;

struct PageKey {
  int64_t block = 0;
  int32_t page = 0;
};

// The place of a record of tensors, and what it holds.
struct TensorRecord {
  PageRow row;
  std::vector<TensorRow> tensors;
};

// A block to commit: a checked draft, the place of its kv (rows[i] is page i), and its tensors.
struct NewBlock {
  int64_t id = 0;
  const BlockDraft* draft = nullptr;
  std::vector<PageRow> rows;
  std::optional<TensorRecord> tensors;
};

// A record of tensors of format 1, and what it holds: nothing when it could not be read.
struct OldTensors {
  int64_t block = 0;
  PayloadKind kind = PayloadKind::kDetail;
  std::optional<std::vector<TensorRow>> tensors;
};

// A tensor, and the record that holds it.
struct PlacedTensor {
  TensorRow tensor;
  PageRow record;
};

// A record that the catalog names.
struct RecordRow {
  int64_t block = 0;
  PayloadKind kind = PayloadKind::kKv;
  int32_t page = 0;
  PageRow row;
};

// Thread-safe: one connection behind one mutex, held for a lookup or a commit, never during payload I/O. Rows that were
// read lately are kept in RAM, up to kMostKnownBytes of them. A reader drops them when another process has committed.
class Catalog {
 public:
  static Result<std::unique_ptr<Catalog>> CreateInRam();
  // Makes an empty catalog; `file` must not exist.
  static Result<std::unique_ptr<Catalog>> Create(const FilePath& file);
  // kCorrupt names the file. A reader works beside a writer, and without the right to write to the folder.
  static Result<std::unique_ptr<Catalog>> Open(const FilePath& file, bool read_only);

  // Whether a file has nothing that anybody could miss: it is what a crash left of Create, and no block was ever in it.
  static bool HoldsNothing(const FilePath& file);
  // The file goes, and what SQLite keeps beside it. No file is no failure.
  static Status Remove(const FilePath& file);

  // Return the id of the next block: one more than any that was ever given.
  [[nodiscard]] Result<int64_t> NextBlockId();
  // Give no id below `next` from now on.
  Status ReserveIdsBelow(int64_t next);
  // Return the highest segment that a row names, 0 without rows.
  [[nodiscard]] Result<int32_t> NewestSegment();

  // Return the number of its schema: kFormatVersion, or an older one of a catalog that was not migrated.
  [[nodiscard]] Result<int64_t> Schema();
  // Migrate from schema 1 to this one, with what its records of tensors hold. All or none, durable on return.
  Status Migrate(std::span<const OldTensors> tensors);

  // Insert blocks, with what the drafts change in the graph. All or none, durable on return.
  Status Insert(std::span<const NewBlock> blocks);
  // Replace all tensors of a block.
  Status PutTensors(int64_t id, const TensorRecord& record);
  Status AddTags(int64_t id, std::span<const std::string> tags);
  Status ChangeGraph(const GraphChange& change);

  // `damage`, if given, gets what does not match its checksum, and that is left out. Without it that is kCorrupt.
  [[nodiscard]] Result<std::vector<BlockInfo>> Blocks(const BlockFilter& filter, std::vector<Damage>* damage = nullptr);
  // Visit blocks, as MemoryStore. What does not match its checksum is kCorrupt.
  [[nodiscard]] Status VisitBlocks(const BlockFilter& filter, const MemoryStore::BlockVisitor& visit);
  [[nodiscard]] Result<BlockInfo> Block(int64_t id);
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t id);
  // Return the rows of these pages of kv, in the order of `pages`.
  [[nodiscard]] Result<std::vector<std::shared_ptr<const PageRow>>> Locate(std::span<const PageKey> pages);
  // Return the tensors by name. kCorrupt when they are not all that the block's records have.
  [[nodiscard]] Result<std::vector<TensorRow>> Tensors(int64_t id);
  [[nodiscard]] Result<PlacedTensor> FindTensor(int64_t id, const std::string& name);
  [[nodiscard]] Result<std::map<std::string, int64_t>> TensorBytes();
  // Read the graph as of one moment; empty before schema 2. `damage`, if given, gets what is damaged or has lost an
  // end. That is then left out, and `lost` says what to remove. Without `damage` it is kCorrupt.
  [[nodiscard]] Result<Graph> ReadGraph(std::vector<Damage>* damage = nullptr, GraphChange* lost = nullptr);
  [[nodiscard]] Result<GraphNode> Node(int64_t id);
  [[nodiscard]] Result<std::vector<GraphNode>> Nodes(NodeKind kind);
  [[nodiscard]] Result<std::vector<int64_t>> NodeIds(NodeKind kind);
  [[nodiscard]] Result<std::vector<GraphEdge>> EdgesOf(int64_t node);
  // Return the number of nodes and of edges.
  [[nodiscard]] Result<std::pair<int64_t, int64_t>> GraphSize();
  // Return the record of another kind; kNotFound when the block has none.
  [[nodiscard]] Result<PageRow> FindRecord(int64_t id, PayloadKind kind);
  // Return every record of every live block, in order of block, kind, page. `damage` is as above. `lost`, if given,
  // gets records of tensors with damaged rows instead, by block, kind and page.
  [[nodiscard]] Result<std::vector<RecordRow>> Records(std::vector<Damage>* damage = nullptr,
                                                       std::vector<RecordRow>* lost = nullptr);
  // Return the result of SQLite's own check of the whole file; empty when it is whole.
  [[nodiscard]] Result<std::vector<std::string>> CheckIntegrity();

  // Forget blocks. All or none; durable on return.
  Status Forget(std::span<const int64_t> ids, const GraphChange& change);
  // Remove, all or none, the rows of these blocks, those of records without a block, these records of other blocks, and
  // `lost` of the graph. Then rewrite the file; if that fails, the rows are gone all the same.
  Status Drop(std::span<const int64_t> ids, std::span<const RecordRow> records, const GraphChange& lost);
  // Remove the rows of forgotten blocks. All or none, durable on return.
  Status DropForgotten();
  // Remove the rows of these blocks, and return where their records lay. All or none.
  Result<std::vector<PageRow>> TakeOut(std::span<const int64_t> ids);
  // Write the file and its log anew, without the remains of deleted rows. kBusy while a reader uses the log.
  Status Rewrite();
  // Copy this catalog, as it is now, to `file`, which must not exist. Durable on return.
  Status Snapshot(const FilePath& file);
  // Drop the known rows, so that they are read from the file again.
  void DropKnownRows();
  [[nodiscard]] int64_t known_bytes() const;  // of rows that are kept in RAM, about

 private:
  // The state of a file that is read as one that never changes, because SQLite cannot make its shared files beside it.
  // If the file looks different later, the connection is opened anew.
  struct FileState {
    FileStamp file;
    bool has_wal = false;
    bool operator==(const FileState&) const = default;
  };
  struct BlockRow;  // catalog_rows.h
  // Rows of a block's kv; null where one is missing or damaged.
  using KnownRows = std::shared_ptr<const std::vector<std::shared_ptr<const PageRow>>>;

  explicit Catalog(Database database, FilePath file = {}, bool read_only = false)
      : database_(std::move(database)), file_(std::move(file)), read_only_(read_only) {}
  static FileState Look(const FilePath& file);
  Status OpenForReading();
  Status Refresh();
  // Check that it is a catalog, with SQLite's check of its structure.
  Status Verify(bool whole_file);
  Status CheckQuickly();
  // Call these under mutex_, in the caller's transaction.
  Status WalkBlocks(const BlockFilter& filter, const MemoryStore::BlockVisitor& visit, std::vector<Damage>* damage);
  Result<std::vector<BlockInfo>> SelectBlocks(const BlockFilter& filter, std::vector<Damage>* damage);
  Result<std::optional<BlockRow>> FindBlock(int64_t id);
  Result<BlockRow> LiveBlock(int64_t id);
  Status InsertPages(int64_t id, std::span<const PageRow> rows);
  Status InsertTensors(int64_t id, const TensorRecord& record);
  Status InsertTensorRows(int64_t id, std::span<const TensorRow> rows);
  Result<std::vector<TensorRow>> SelectTensors(int64_t id);
  Result<PageRow> SelectRecord(int64_t id, PayloadKind kind);
  // `block` is the id that kThisBlock stands for.
  Status Apply(const GraphChange& change, int64_t block = kThisBlock);
  Status PutNode(const GraphNode& node, int64_t block);
  Status PutEdge(const GraphEdge& edge, int64_t block);
  Status DropNode(int64_t id);
  Status DropEdge(const EdgeKey& edge);
  Result<bool> HasNode(int64_t id);
  Result<int64_t> SchemaNow();
  Status DeleteBlocks(std::span<const int64_t> ids);
  [[nodiscard]] Status Mismatch(const std::string& what) const;
  void DropKnownRowsOf(std::span<const int64_t> ids);
  Result<KnownRows> LoadRows(int64_t id);
  [[nodiscard]] KnownRows FindKnown(int64_t id) const;
  void Know(int64_t id, const KnownRows& rows);
  // Call it under known_mutex_.
  void Unknow(int64_t id);
  Result<std::shared_ptr<const PageRow>> RowOf(const PageKey& key, const KnownRows& rows) const;

  std::mutex mutex_;
  Database database_;
  FilePath file_;  // none in RAM
  bool read_only_ = false;
  std::optional<FileState> immutable_as_;  // set while the file is read as one that never changes
  int64_t data_version_ = 0;               // of the known rows, for a reader
  mutable std::mutex known_mutex_;         // guards known_; taken after mutex_
  std::unordered_map<int64_t, KnownRows> known_;
  std::deque<int64_t> known_order_;  // blocks of known_, oldest first, and some that have left it
  int64_t known_bytes_ = 0;          // of known_, about
};

}  // namespace everlong::store
