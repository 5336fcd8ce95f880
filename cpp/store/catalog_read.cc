// The catalog's reads of its blocks.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "catalog.h"
#include "catalog_rows.h"
#include "everlong/base/crc32c.h"

namespace everlong::store {
namespace {

constexpr int64_t kMostCacheBytes = int64_t{2000} << 10;  // SQLite's own bound
constexpr int64_t kLeastBytes = int64_t{64} << 10;

// A key that is no integer would be read as a block's number, and be found by none.
constexpr std::string_view kSelectTags =
    "SELECT block, tag FROM tags WHERE typeof(block) = 'integer' ORDER BY block, position";
constexpr std::string_view kSelectTagsBehind =
    "SELECT block, tag FROM tags WHERE block > ? AND typeof(block) = 'integer' ORDER BY block, position";
constexpr std::string_view kSelectTokenIds = "SELECT token_ids FROM blocks WHERE id = ?";
constexpr std::string_view kCountOrphans =
    "SELECT count(*) FROM pages WHERE block NOT IN (SELECT id FROM blocks) OR NOT " EVERLONG_HAS_PAGE_KEY;
constexpr std::string_view kCountLooseTensors =
    "SELECT count(*) FROM tensors WHERE NOT EXISTS "
    "(SELECT 1 FROM pages WHERE pages.block = tensors.block AND pages.kind = tensors.kind)";
constexpr std::string_view kSelectNewestSegment = "SELECT coalesce(max(segment), 0) FROM pages";

bool Chooses(const BlockFilter& filter, const BlockInfo& info) {
  return (!filter.source || info.source == *filter.source) &&
         (!filter.tag || std::find(info.tags.begin(), info.tags.end(), *filter.tag) != info.tags.end()) &&
         (!filter.since || info.created_at >= *filter.since) && (!filter.before || info.created_at < *filter.before) &&
         (!filter.roles || filter.roles->Has(info.role));
}

// Return a query of all rows, or, behind an id, of those alone.
Result<Query> PrepareBehind(Database& database, std::string_view all, std::string_view behind,
                            const std::optional<int64_t>& id) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(id ? behind : all));
  if (id) query.Bind(*id);
  return query;
}

// Visit the blocks in the caller's transaction. `damage` is as for Catalog::Blocks.
Status WalkBlocks(Database& database, const BlockFilter& filter, const MemoryStore::BlockVisitor& visit,
                  std::vector<Damage>* damage) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaOf(database));
  const BlockQueries& select = schema < 2 ? kSelectBlocksOfSchema1 : kSelectBlocks;
  EVERLONG_ASSIGN_OR_RETURN(Query query, PrepareBehind(database, select.all, select.behind, filter.behind));
  // Both are by id of the block, so that they can be read side by side.
  EVERLONG_ASSIGN_OR_RETURN(Query tags, PrepareBehind(database, kSelectTags, kSelectTagsBehind, filter.behind));
  EVERLONG_ASSIGN_OR_RETURN(bool more_tags, tags.Step());
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return OkStatus();
    BlockRow row = BlockRow::Of(query);
    while (more_tags && tags.Int64(0) <= row.info.id) {
      if (tags.Int64(0) == row.info.id) row.info.tags.push_back(tags.Text(1));
      EVERLONG_ASSIGN_OR_RETURN(more_tags, tags.Step());
    }
    if (const char* const problem = row.Problem(query); problem != nullptr) {
      Status status = Mismatch(database, problem + (" in the row of block " + std::to_string(row.info.id)));
      if (damage == nullptr) return status;
      damage->push_back({row.info.id, status.message()});
      continue;
    }
    if (row.state != kLive || !Chooses(filter, row.info)) continue;
    EVERLONG_ASSIGN_OR_RETURN(const bool goes_on, visit(std::move(row.info)));
    if (!goes_on) return OkStatus();
  }
}

Result<std::vector<BlockInfo>> SelectBlocks(Database& database, const BlockFilter& filter,
                                            std::vector<Damage>* damage) {
  std::vector<BlockInfo> blocks;
  const auto keep = [&blocks](BlockInfo&& block) {
    blocks.push_back(std::move(block));
    return true;
  };
  EVERLONG_RETURN_IF_ERROR(WalkBlocks(database, filter, keep, damage));
  return blocks;
}

Result<std::shared_ptr<const PageRow>> RowOf(const std::string& catalog, const PageKey& key,
                                             const KnownRows::Rows& rows) {
  if (key.page < 0 || key.page >= std::ssize(*rows)) {
    return NotFoundError("block " + std::to_string(key.block) + " has no page " + std::to_string(key.page) +
                         ", it has " + std::to_string(rows->size()));
  }
  const std::shared_ptr<const PageRow>& row = (*rows)[static_cast<size_t>(key.page)];
  if (row != nullptr) return row;
  return CorruptError("catalog '" + catalog + "': the row of block " + std::to_string(key.block) + " page " +
                      std::to_string(key.page) + " is missing or does not match its checksum");
}

}  // namespace

int64_t CatalogShareOf(int64_t host_bytes) {
  return std::min(host_bytes / kCatalogShare, kMostKnownBytes + kMostCacheBytes);
}

Result<std::unique_ptr<Catalog>> Catalog::Over(Result<std::unique_ptr<CatalogFile>> file, int64_t host_bytes) {
  EVERLONG_RETURN_IF_ERROR(file.status());
  const int64_t half = std::max(kLeastBytes, host_bytes / kCatalogShare / 2);
  if (half < kMostCacheBytes) EVERLONG_RETURN_IF_ERROR((*file)->SetCacheBytes(half));
  return std::unique_ptr<Catalog>(new Catalog(std::move(file).value(), std::min(kMostKnownBytes, half)));
}

Result<int64_t> Catalog::NextBlockId() const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Hold());
  EVERLONG_ASSIGN_OR_RETURN(const int64_t sequence, SelectNumber(turn.database, kSelectSequence));
  return sequence + 1;
}

Result<int64_t> Catalog::Forgettings() const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Hold());
  return SelectNumber(turn.database, kSelectForgettings);
}

Result<int32_t> Catalog::NewestSegment() const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Hold());
  EVERLONG_ASSIGN_OR_RETURN(const int64_t segment, SelectNumber(turn.database, kSelectNewestSegment));
  if (segment < 0 || segment >= std::numeric_limits<int32_t>::max()) {
    return CorruptError("catalog '" + turn.database.name() + "' names segment " + std::to_string(segment));
  }
  return static_cast<int32_t>(segment);
}

Result<int64_t> Catalog::Schema() const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Hold());
  return SchemaOf(turn.database);
}

Result<std::vector<BlockInfo>> Catalog::Blocks(const BlockFilter& filter, std::vector<Damage>* damage) const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  return SelectBlocks(turn.database, filter, damage);
}

Status Catalog::VisitBlocks(const BlockFilter& filter, const MemoryStore::BlockVisitor& visit) const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  return WalkBlocks(turn.database, filter, visit, nullptr);
}

Result<BlockInfo> Catalog::Block(int64_t id) const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(turn.database, id));
  return std::move(row.info);
}

Result<std::vector<int32_t>> Catalog::TokenIds(int64_t id) const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_ASSIGN_OR_RETURN(const BlockRow row, LiveBlock(turn.database, id));
  EVERLONG_ASSIGN_OR_RETURN(Query query, turn.database.Prepare(kSelectTokenIds));
  EVERLONG_RETURN_IF_ERROR(query.Bind(id).Step().status());
  const std::span<const std::byte> blob = query.Blob(0);
  if (static_cast<int64_t>(blob.size()) != row.info.span.size() * 4 || Crc32c(blob) != row.info.token_crc) {
    return Mismatch(turn.database, "checksum mismatch in the token ids of block " + std::to_string(id));
  }
  std::vector<int32_t> ids(blob.size() / 4);
  std::memcpy(ids.data(), blob.data(), blob.size());
  return ids;
}

Result<KnownRows::Rows> Catalog::LoadRows(Database& database, int64_t id) const {
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const BlockRow block, LiveBlock(database, id));
  const auto pages = static_cast<size_t>(block.info.pages);
  auto rows = std::make_shared<std::vector<std::shared_ptr<const PageRow>>>(pages);
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(kSelectPages));
  int64_t bytes = 0;
  EVERLONG_RETURN_IF_ERROR(query.Bind(id).ForEach([&] {
    const int64_t page = query.Int64(kPageColumn);
    if (query.Int64(kKindColumn) != static_cast<int64_t>(PayloadKind::kKv) || page < 0 || page >= block.info.pages)
      return;
    if (std::optional<PageRow> row = PageOf(query, id)) {
      bytes += std::min(kMostSegmentBytes - bytes, std::ssize(row->part_crcs) * row->part_bytes);
      (*rows)[static_cast<size_t>(page)] = std::make_shared<const PageRow>(*std::move(row));
    }
  }));
  // Pages of another size than the block's are not its pages.
  const bool whole = std::ranges::none_of(*rows, [](const auto& row) { return row == nullptr; });
  if (whole && bytes != block.info.payload_bytes) rows->assign(pages, nullptr);
  known_.Put(id, rows);
  return KnownRows::Rows(std::move(rows));
}

Result<std::vector<std::shared_ptr<const PageRow>>> Catalog::Locate(std::span<const PageKey> pages) const {
  std::vector<std::shared_ptr<const PageRow>> found;
  found.reserve(pages.size());
  std::optional<CatalogFile::Turn> turn;
  const auto hold = [&]() -> Status {
    if (turn) return OkStatus();
    EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn held, file_->Hold());
    turn.emplace(std::move(held));
    return OkStatus();
  };
  if (file_->read_only()) {
    // Another process may have forgotten blocks since.
    EVERLONG_RETURN_IF_ERROR(hold());
    EVERLONG_ASSIGN_OR_RETURN(const auto now, AsOf(turn->database));
    if (now != std::exchange(known_as_of_, now)) known_.Clear();
  }
  KnownRows::Rows rows;
  int64_t block = 0;
  for (const PageKey& key : pages) {
    if (rows == nullptr || key.block != block) rows = known_.Find(key.block);
    block = key.block;
    if (rows == nullptr) {
      EVERLONG_RETURN_IF_ERROR(hold());
      EVERLONG_ASSIGN_OR_RETURN(rows, LoadRows(turn->database, key.block));
    }
    EVERLONG_ASSIGN_OR_RETURN(std::shared_ptr<const PageRow> row, RowOf(file_->name(), key, rows));
    found.push_back(std::move(row));
  }
  return found;
}

Result<std::pair<int64_t, int64_t>> Catalog::AsOf(Database& database) const {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t changes, SelectNumber(database, "PRAGMA data_version"));
  return std::pair(file_->openings(), changes);  // each connection counts for itself
}

Result<CatalogTotals> Catalog::Totals() const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_RETURN_IF_ERROR(SchemaOf(turn.database).status());  // the first read chooses the moment
  EVERLONG_ASSIGN_OR_RETURN(const auto now, AsOf(turn.database));
  if (now != std::exchange(totals_as_of_, now)) totals_.reset();
  if (!totals_) {
    EVERLONG_ASSIGN_OR_RETURN(totals_, CountTotals(turn.database));
  }
  return *totals_;
}

Result<PageRow> Catalog::FindRecord(int64_t id, PayloadKind kind) const {
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_RETURN_IF_ERROR(LiveBlock(turn.database, id).status());
  return SelectRecord(turn.database, id, kind);
}

Result<std::vector<RecordRow>> Catalog::Records(std::vector<Damage>* damage, std::vector<RecordRow>* lost) const {
  // Read blocks and their pages from one state, because a writer beside this reader may commit at any time.
  EVERLONG_ASSIGN_OR_RETURN(const CatalogFile::Turn turn, file_->Read());
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, SelectBlocks(turn.database, {}, damage));
  std::vector<RecordRow> records;
  const auto complain = [&](int64_t block, const std::string& what) {
    Status status = Mismatch(turn.database, what);
    if (damage == nullptr) return status;
    damage->push_back({block, status.message()});
    return OkStatus();
  };
  for (const BlockInfo& block : blocks) {
    const std::string name = "block " + std::to_string(block.id);
    int64_t pages = 0;
    EVERLONG_ASSIGN_OR_RETURN(Query query, turn.database.Prepare(kSelectPages));
    EVERLONG_RETURN_IF_ERROR(query.Bind(block.id).ForEach([&] {
      const auto kind = static_cast<PayloadKind>(query.Int64(kKindColumn));
      const int64_t page = query.Int64(kPageColumn);
      std::optional<PageRow> row = PageOf(query, block.id);
      if (row && (kind != PayloadKind::kKv || page == pages)) {
        pages += kind == PayloadKind::kKv ? 1 : 0;
        records.push_back({block.id, kind, static_cast<int32_t>(page), *std::move(row)});
        return OkStatus();
      }
      if (lost == nullptr || kind == PayloadKind::kKv) {
        return complain(block.id, "a row of " + name + " is missing or does not match its checksum");
      }
      lost->push_back({block.id, kind, static_cast<int32_t>(page), {}});
      return OkStatus();
    }));
    if (pages != block.pages) {
      EVERLONG_RETURN_IF_ERROR(complain(block.id, name + " has " + std::to_string(block.pages) + " pages and " +
                                                      std::to_string(pages) + " rows of them"));
    }
  }
  EVERLONG_ASSIGN_OR_RETURN(const int64_t orphans, SelectNumber(turn.database, kCountOrphans));
  if (orphans > 0)
    EVERLONG_RETURN_IF_ERROR(complain(0, std::to_string(orphans) + " page rows belong to no record of a block"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaOf(turn.database));
  if (schema < 2) return records;
  EVERLONG_ASSIGN_OR_RETURN(const int64_t loose, SelectNumber(turn.database, kCountLooseTensors));
  if (loose > 0) EVERLONG_RETURN_IF_ERROR(complain(0, std::to_string(loose) + " rows of tensors belong to no record"));
  return records;
}

}  // namespace everlong::store
