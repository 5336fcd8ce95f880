// The catalog of a memory: which blocks there are, and where their records lie. Its commit is the commit of the memory.
// Every row carries a CRC-32C of its values (docs/format.md), because SQLite finds damaged structure but not a damaged
// value.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catalog_file.h"
#include "catalog_graph.h"
#include "catalog_totals.h"
#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"
#include "known_rows.h"
#include "record.h"
#include "tensor_rows.h"

namespace everlong::store {

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

// The part of a memory's RAM that its catalog may take beside the payload: one in so many, half of it for rows that are
// known and half for SQLite's cache, up to kMostKnownBytes and SQLite's own bound.
inline constexpr int64_t kCatalogShare = 8;
int64_t CatalogShareOf(int64_t host_bytes);

// Thread-safe. The connection is held for a lookup or a commit, never during payload I/O. Rows that were read lately
// are kept in RAM. A reader drops them when another process has committed. Every change is all or none, durable on
// return.
class Catalog {
 public:
  // The catalog of an opened file, or why there is none. It keeps to its share of `host_bytes`, but at least 64 KiB of
  // SQLite's cache and as much of known rows.
  static Result<std::unique_ptr<Catalog>> Over(Result<std::unique_ptr<CatalogFile>> file,
                                               int64_t host_bytes = std::numeric_limits<int64_t>::max());
  [[nodiscard]] CatalogFile& file() { return *file_; }
  [[nodiscard]] Result<std::vector<std::string>> CheckIntegrity() const { return file_->CheckIntegrity(); }
  [[nodiscard]] CatalogGraph graph() const { return CatalogGraph(*file_); }

  // Return the id of the next block: one more than any that was ever given.
  [[nodiscard]] Result<int64_t> NextBlockId() const;
  // Give no id below `next` from now on.
  Status ReserveIdsBelow(int64_t next);
  // Return how often blocks were forgotten or dropped so far.
  [[nodiscard]] Result<int64_t> Forgettings() const;
  // Return the highest segment that a row names, 0 without rows.
  [[nodiscard]] Result<int32_t> NewestSegment() const;

  // Return the number of its schema: kCatalogSchema, or an older one of a catalog that was not migrated.
  [[nodiscard]] Result<int64_t> Schema() const;
  // Migrate from schema 1 to this one, with what its records of tensors hold.
  Status Migrate(std::span<const OldTensors> tensors);

  // Insert blocks, with what the drafts change in the graph.
  Status Insert(std::span<const NewBlock> blocks);
  // Replace the pages of a block and all of its tags. Return where the old pages lay.
  Result<std::vector<PageRow>> ReplacePages(int64_t id, std::span<const PageRow> rows, int64_t payload_bytes,
                                            std::span<const std::string> tags);
  // Replace all tensors of a block; none: it has no more. Return where the old ones lay.
  Result<std::vector<PageRow>> PutTensors(int64_t id, const std::optional<TensorRecord>& record);
  Status AddTags(int64_t id, std::span<const std::string> tags);
  // Replace all tags of a block.
  Status SetTags(int64_t id, std::span<const std::string> tags);

  // `damage`, if given, gets what does not match its checksum, and that is left out. Without it that is kCorrupt.
  [[nodiscard]] Result<std::vector<BlockInfo>> Blocks(const BlockFilter& filter,
                                                      std::vector<Damage>* damage = nullptr) const;
  // Visit blocks, as MemoryStore. What does not match its checksum is kCorrupt.
  [[nodiscard]] Status VisitBlocks(const BlockFilter& filter, const MemoryStore::BlockVisitor& visit) const;
  [[nodiscard]] Result<BlockInfo> Block(int64_t id) const;
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t id) const;
  // Return the rows of these pages of kv, in the order of `pages`.
  [[nodiscard]] Result<std::vector<std::shared_ptr<const PageRow>>> Locate(std::span<const PageKey> pages) const;
  // Return the tensors by name. kCorrupt when they are not all that the block's records have.
  [[nodiscard]] Result<std::vector<TensorRow>> Tensors(int64_t id) const;
  [[nodiscard]] Result<PlacedTensor> FindTensor(int64_t id, const std::string& name) const;
  // As MemoryStore.
  [[nodiscard]] Result<std::map<int64_t, uint32_t>> TensorChecksums(int64_t first, int64_t last,
                                                                    std::span<const std::string> names) const;
  // Return how much there is. The first call counts, and for a reader each first one after a commit.
  [[nodiscard]] Result<CatalogTotals> Totals() const;
  // Return the record of another kind; kNotFound when the block has none.
  [[nodiscard]] Result<PageRow> FindRecord(int64_t id, PayloadKind kind) const;
  // Return every record of every live block, in order of block, kind, page. `damage` is as above. `lost`, if given,
  // gets records of tensors with damaged rows instead, by block, kind and page.
  [[nodiscard]] Result<std::vector<RecordRow>> Records(std::vector<Damage>* damage = nullptr,
                                                       std::vector<RecordRow>* lost = nullptr) const;

  Status ChangeGraph(const GraphChange& change);
  Status Forget(std::span<const int64_t> ids, const GraphChange& change);
  // Remove the rows of these blocks, those of records without a block, these records of other blocks, and `lost` of the
  // graph. Then rewrite the file; if that fails, the rows are gone all the same.
  Status Drop(std::span<const int64_t> ids, std::span<const RecordRow> records, const GraphChange& lost);
  // Remove the rows of forgotten blocks.
  Status DropForgotten();
  // Remove the rows of these blocks, and return where their records lay.
  Result<std::vector<PageRow>> TakeOut(std::span<const int64_t> ids);
  // Return the RAM that it takes: all of a catalog in RAM, else SQLite's cache; and the rows that are known.
  [[nodiscard]] int64_t RamBytes() const { return file_->RamBytes() + known_.bytes(); }
  // Rows that are kept in RAM.
  [[nodiscard]] const KnownRows& known() const { return known_; }
  // Look every row up again that is read from now on.
  void DropKnown() const { known_.Clear(); }

 private:
  Catalog(std::unique_ptr<CatalogFile> file, int64_t most_known) : file_(std::move(file)), known_(most_known) {}
  [[nodiscard]] Result<KnownRows::Rows> LoadRows(Database& database, int64_t id) const;
  // Return what tells whether another process has committed since. Call it in a turn.
  [[nodiscard]] Result<std::pair<int64_t, int64_t>> AsOf(Database& database) const;
  static Status Commit(CatalogFile::Turn& turn, ChangingTotals& totals);

  std::unique_ptr<CatalogFile> file_;
  mutable std::optional<CatalogTotals> totals_;  // none where they are unknown; in a turn
  mutable std::pair<int64_t, int64_t> totals_as_of_;
  mutable KnownRows known_;
  mutable std::pair<int64_t, int64_t>
      known_as_of_;  // for a reader: openings of the file, and changes that it saw since
};

}  // namespace everlong::store
