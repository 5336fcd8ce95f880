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

constexpr std::string_view kSelectTagsOf = "SELECT block, tag FROM tags WHERE block = ? ORDER BY position";
constexpr std::string_view kSelectTags = "SELECT block, tag FROM tags ORDER BY block, position";
constexpr std::string_view kSelectTokenIds = "SELECT token_ids FROM blocks WHERE id = ?";
constexpr std::string_view kCountOrphans = "SELECT count(*) FROM pages WHERE block NOT IN (SELECT id FROM blocks)";
constexpr std::string_view kCountLooseTensors =
    "SELECT count(*) FROM tensors WHERE NOT EXISTS "
    "(SELECT 1 FROM pages WHERE pages.block = tensors.block AND pages.kind = tensors.kind)";
constexpr std::string_view kSelectNewestSegment = "SELECT coalesce(max(segment), 0) FROM pages";

// Return about how much RAM a block's known rows take.
int64_t BytesOf(const std::vector<std::shared_ptr<const PageRow>>& rows) {
  constexpr size_t kBlock = 200;  // of the maps and the list
  constexpr size_t kRow = sizeof(PageRow) + 48;
  size_t bytes = kBlock + rows.capacity() * sizeof(rows[0]);
  for (const auto& row : rows) {
    if (row != nullptr) bytes += kRow + row->part_crcs.capacity() * sizeof(uint32_t);
  }
  return static_cast<int64_t>(bytes);
}

bool Chooses(const BlockFilter& filter, const BlockInfo& info) {
  return (!filter.source || info.source == *filter.source) &&
         (!filter.tag || std::find(info.tags.begin(), info.tags.end(), *filter.tag) != info.tags.end()) &&
         (!filter.since || info.created_at >= *filter.since) && (!filter.before || info.created_at < *filter.before) &&
         (!filter.roles || filter.roles->Has(info.role));
}

}  // namespace

Result<int64_t> Catalog::NextBlockId() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const int64_t sequence, SelectNumber(database_, kSelectSequence));
  return sequence + 1;
}

Result<int32_t> Catalog::NewestSegment() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(const int64_t segment, SelectNumber(database_, kSelectNewestSegment));
  if (segment < 0 || segment >= std::numeric_limits<int32_t>::max()) {
    return CorruptError("catalog '" + database_.name() + "' names segment " + std::to_string(segment));
  }
  return static_cast<int32_t>(segment);
}

Result<std::vector<BlockInfo>> Catalog::Blocks(const BlockFilter& filter, std::vector<Damage>* damage) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  return SelectBlocks(filter, damage);
}

Status Catalog::VisitBlocks(const BlockFilter& filter, const MemoryStore::BlockVisitor& visit) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  return WalkBlocks(filter, visit, nullptr);
}

Result<std::vector<BlockInfo>> Catalog::SelectBlocks(const BlockFilter& filter, std::vector<Damage>* damage) {
  std::vector<BlockInfo> blocks;
  const auto keep = [&blocks](BlockInfo&& block) {
    blocks.push_back(std::move(block));
    return OkStatus();
  };
  EVERLONG_RETURN_IF_ERROR(WalkBlocks(filter, keep, damage));
  return blocks;
}

Status Catalog::WalkBlocks(const BlockFilter& filter, const MemoryStore::BlockVisitor& visit,
                           std::vector<Damage>* damage) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare((schema < 2 ? kSelectBlocksOfSchema1 : kSelectBlocks).all));
  // Both are by id of the block, so that they can be read side by side.
  EVERLONG_ASSIGN_OR_RETURN(Query tags, database_.Prepare(kSelectTags));
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
      const std::string what =
          "catalog '" + database_.name() + "': " + problem + " in the row of block " + std::to_string(row.info.id);
      if (damage == nullptr) return CorruptError(what);
      damage->push_back({row.info.id, what});
      continue;
    }
    if (row.state == kLive && Chooses(filter, row.info)) EVERLONG_RETURN_IF_ERROR(visit(std::move(row.info)));
  }
}

Result<std::optional<Catalog::BlockRow>> Catalog::FindBlock(int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare((schema < 2 ? kSelectBlocksOfSchema1 : kSelectBlocks).one));
  EVERLONG_ASSIGN_OR_RETURN(const bool found, query.Bind(id).Step());
  if (!found) return std::optional<BlockRow>();
  BlockRow row = BlockRow::Of(query);
  EVERLONG_ASSIGN_OR_RETURN(Query tags, database_.Prepare(kSelectTagsOf));
  tags.Bind(id);
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, tags.Step());
    if (!more) break;
    row.info.tags.push_back(tags.Text(1));
  }
  if (const char* const problem = row.Problem(query); problem != nullptr) {
    return CorruptError("catalog '" + database_.name() + "': " + problem + " in the row of block " +
                        std::to_string(id));
  }
  return std::optional<BlockRow>(std::move(row));
}

Result<Catalog::BlockRow> Catalog::LiveBlock(int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(std::optional<BlockRow> row, FindBlock(id));
  if (!row || row->state != kLive) return NotFoundError("no block " + std::to_string(id));
  return *std::move(row);
}

Result<BlockInfo> Catalog::Block(int64_t id) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(id));
  return std::move(row.info);
}

Result<std::vector<int32_t>> Catalog::TokenIds(int64_t id) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const BlockRow row, LiveBlock(id));
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectTokenIds));
  EVERLONG_RETURN_IF_ERROR(query.Bind(id).Step().status());
  const std::span<const std::byte> blob = query.Blob(0);
  if (static_cast<int64_t>(blob.size()) != row.info.span.size() * 4 || Crc32c(blob) != row.info.token_crc) {
    return CorruptError("catalog '" + database_.name() + "': checksum mismatch in the token ids of block " +
                        std::to_string(id));
  }
  std::vector<int32_t> ids(blob.size() / 4);
  std::memcpy(ids.data(), blob.data(), blob.size());
  return ids;
}

Catalog::KnownRows Catalog::FindKnown(int64_t id) const {
  const std::scoped_lock lock(known_mutex_);
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : found->second;
}

void Catalog::DropKnownRows() {
  const std::scoped_lock lock(known_mutex_);
  known_.clear();
  known_order_.clear();
  known_bytes_ = 0;
}

int64_t Catalog::known_bytes() const {
  const std::scoped_lock lock(known_mutex_);
  return known_bytes_;
}

void Catalog::Unknow(int64_t id) {
  const auto found = known_.find(id);
  if (found == known_.end()) return;
  known_bytes_ -= BytesOf(*found->second);
  known_.erase(found);
}

void Catalog::Know(int64_t id, const KnownRows& rows) {
  const int64_t bytes = BytesOf(*rows);
  const std::scoped_lock lock(known_mutex_);
  Unknow(id);
  known_order_.push_back(id);
  known_.emplace(id, rows);
  known_bytes_ += bytes;
  // Drop the oldest.
  while (known_bytes_ > kMostKnownBytes && known_order_.size() > 1) {
    Unknow(known_order_.front());
    known_order_.pop_front();
  }
  // Blocks that left in another way are still in the order.
  if (known_order_.size() > 2 * known_.size() + 16) {
    std::erase_if(known_order_, [this](int64_t of) { return !known_.contains(of); });
  }
}

// Call it under mutex_.
Result<Catalog::KnownRows> Catalog::LoadRows(int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const BlockRow block, LiveBlock(id));
  const auto pages = static_cast<size_t>(block.info.pages);
  auto rows = std::make_shared<std::vector<std::shared_ptr<const PageRow>>>(pages);
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectPages));
  query.Bind(id);
  int64_t bytes = 0;
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    const int64_t page = query.Int64(kPageColumn);
    if (query.Int64(kKindColumn) != static_cast<int64_t>(PayloadKind::kKv) || page < 0 || page >= block.info.pages)
      continue;
    if (std::optional<PageRow> row = PageOf(query, id)) {
      bytes += std::min(kMostSegmentBytes - bytes, std::ssize(row->part_crcs) * row->part_bytes);
      (*rows)[static_cast<size_t>(page)] = std::make_shared<const PageRow>(*std::move(row));
    }
  }
  // Pages of another size than the block's are not its pages.
  const bool whole = std::ranges::none_of(*rows, [](const auto& row) { return row == nullptr; });
  if (whole && bytes != block.info.payload_bytes) rows->assign(pages, nullptr);
  KnownRows known = std::move(rows);
  Know(id, known);
  return known;
}

Result<std::shared_ptr<const PageRow>> Catalog::RowOf(const PageKey& key, const KnownRows& rows) const {
  if (key.page < 0 || key.page >= std::ssize(*rows)) {
    return NotFoundError("block " + std::to_string(key.block) + " has no page " + std::to_string(key.page) +
                         ", it has " + std::to_string(rows->size()));
  }
  const std::shared_ptr<const PageRow>& row = (*rows)[static_cast<size_t>(key.page)];
  if (row == nullptr) {
    return CorruptError("catalog '" + database_.name() + "': the row of block " + std::to_string(key.block) + " page " +
                        std::to_string(key.page) + " is missing or does not match its checksum");
  }
  return row;
}

Result<std::vector<std::shared_ptr<const PageRow>>> Catalog::Locate(std::span<const PageKey> pages) {
  std::vector<std::shared_ptr<const PageRow>> found;
  found.reserve(pages.size());
  std::unique_lock lock(mutex_, std::defer_lock);
  if (read_only_) {
    // Another process may have forgotten blocks since.
    lock.lock();
    EVERLONG_RETURN_IF_ERROR(Refresh());
    EVERLONG_ASSIGN_OR_RETURN(const int64_t version, SelectNumber(database_, "PRAGMA data_version"));
    if (version != std::exchange(data_version_, version)) DropKnownRows();
  }
  KnownRows rows;
  int64_t block = 0;
  for (const PageKey& key : pages) {
    if (rows == nullptr || key.block != block) {
      rows = FindKnown(key.block);
      block = key.block;
    }
    if (rows == nullptr) {
      if (!lock.owns_lock()) lock.lock();
      EVERLONG_ASSIGN_OR_RETURN(rows, LoadRows(key.block));
    }
    EVERLONG_ASSIGN_OR_RETURN(std::shared_ptr<const PageRow> row, RowOf(key, rows));
    found.push_back(std::move(row));
  }
  return found;
}

Result<PageRow> Catalog::FindRecord(int64_t id, PayloadKind kind) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_RETURN_IF_ERROR(LiveBlock(id).status());
  return SelectRecord(id, kind);
}

Result<PageRow> Catalog::SelectRecord(int64_t id, PayloadKind kind) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectPages));
  query.Bind(id);
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    if (query.Int64(kKindColumn) != static_cast<int64_t>(kind) || query.Int64(kPageColumn) != 0) continue;
    std::optional<PageRow> row = PageOf(query, id);
    if (row) return *std::move(row);
    return CorruptError("catalog '" + database_.name() + "': the row of block " + std::to_string(id) + " kind " +
                        std::to_string(static_cast<int64_t>(kind)) + " does not match its checksum");
  }
  return NotFoundError("block " + std::to_string(id) + " has no payload of kind " +
                       std::to_string(static_cast<int64_t>(kind)));
}

Result<std::vector<RecordRow>> Catalog::Records(std::vector<Damage>* damage, std::vector<RecordRow>* lost) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  // Read blocks and their pages from one state, because a writer beside this reader may commit at any time.
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, SelectBlocks({}, damage));
  std::vector<RecordRow> records;
  const auto complain = [&](int64_t block, const std::string& what) {
    const std::string text = "catalog '" + database_.name() + "': " + what;
    if (damage == nullptr) return CorruptError(text);
    damage->push_back({block, text});
    return OkStatus();
  };
  for (const BlockInfo& block : blocks) {
    const std::string name = "block " + std::to_string(block.id);
    int64_t pages = 0;
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectPages));
    query.Bind(block.id);
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
      if (!more) break;
      const auto kind = static_cast<PayloadKind>(query.Int64(kKindColumn));
      const int64_t page = query.Int64(kPageColumn);
      std::optional<PageRow> row = PageOf(query, block.id);
      if (!row || (kind == PayloadKind::kKv && page != pages)) {
        if (lost != nullptr && kind != PayloadKind::kKv) {
          lost->push_back({block.id, kind, static_cast<int32_t>(page), {}});
          continue;
        }
        EVERLONG_RETURN_IF_ERROR(complain(block.id, "a row of " + name + " is missing or does not match its checksum"));
        continue;
      }
      pages += kind == PayloadKind::kKv ? 1 : 0;
      records.push_back({block.id, kind, static_cast<int32_t>(page), *std::move(row)});
    }
    if (pages != block.pages) {
      EVERLONG_RETURN_IF_ERROR(complain(block.id, name + " has " + std::to_string(block.pages) + " pages and " +
                                                      std::to_string(pages) + " rows of them"));
    }
  }
  EVERLONG_ASSIGN_OR_RETURN(const int64_t orphans, SelectNumber(database_, kCountOrphans));
  if (orphans > 0) EVERLONG_RETURN_IF_ERROR(complain(0, std::to_string(orphans) + " page rows belong to no block"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  if (schema < 2) return records;
  EVERLONG_ASSIGN_OR_RETURN(const int64_t loose, SelectNumber(database_, kCountLooseTensors));
  if (loose > 0) EVERLONG_RETURN_IF_ERROR(complain(0, std::to_string(loose) + " rows of tensors belong to no record"));
  return records;
}

Result<std::vector<std::string>> Catalog::CheckIntegrity() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  std::vector<std::string> complaints;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare("PRAGMA integrity_check"));
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    if (std::string text = query.Text(0); text != "ok") complaints.push_back(std::move(text));
  }
  return complaints;
}

}  // namespace everlong::store
