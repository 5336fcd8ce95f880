// The catalog's writes: blocks that come and go.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "catalog.h"
#include "catalog_rows.h"
#include "everlong/base/crc32c.h"

namespace everlong::store {
namespace {

constexpr std::string_view kInsertBlock =
    "INSERT INTO blocks (id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, crc, "
    "token_crc, source, role, token_ids) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr std::string_view kInsertTag = "INSERT INTO tags (block, position, tag) VALUES (?, ?, ?)";
constexpr std::string_view kUpdateState = "UPDATE blocks SET state = ?, crc = ? WHERE id = ?";
constexpr std::string_view kUpdatePayload = "UPDATE blocks SET payload_bytes = ?, crc = ? WHERE id = ?";
constexpr std::string_view kDeletePagesOf = "DELETE FROM pages WHERE block = ? AND kind = ?";
constexpr std::string_view kDeletePages = "DELETE FROM pages WHERE block = ?";
constexpr std::string_view kDeleteTensorsOf = "DELETE FROM tensors WHERE block = ? AND kind = ?";
constexpr std::string_view kDeleteTags = "DELETE FROM tags WHERE block = ?";
constexpr std::string_view kDeleteBlock = "DELETE FROM blocks WHERE id = ?";
constexpr std::string_view kSelectForgotten = "SELECT id FROM blocks WHERE state <> 0";
constexpr std::string_view kUpdateSequence = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'blocks'";
constexpr std::string_view kInsertSequence =
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'blocks', ? WHERE NOT EXISTS "
    "(SELECT 1 FROM sqlite_sequence WHERE name = 'blocks')";
constexpr std::string_view kCountForgetting = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'forgettings'";
constexpr std::string_view kInsertForgettings =
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'forgettings', 0 WHERE NOT EXISTS "
    "(SELECT 1 FROM sqlite_sequence WHERE name = 'forgettings')";

// Call these in the caller's transaction.
Status CountForgetting(Database& database) {
  EVERLONG_RETURN_IF_ERROR(database.Run(kInsertForgettings));
  return database.Run(kCountForgetting);
}

Status PutState(Database& database, const BlockRow& row) {
  return database.Run(kUpdateState, row.state, row.Checksum(), row.info.id);
}

// Give a block these tags and no others. All of them anew: those that are there may have any positions.
Status PutTags(Database& database, int64_t id, std::span<const std::string> tags) {
  EVERLONG_RETURN_IF_ERROR(database.Run(kDeleteTags, id));
  for (size_t position = 0; position < tags.size(); ++position) {
    EVERLONG_RETURN_IF_ERROR(database.Run(kInsertTag, id, position, tags[position]));
  }
  return OkStatus();
}

Status InsertBlock(Database& database, const NewBlock& block, ChangingTotals& totals) {
  const BlockDraft& draft = *block.draft;
  BlockRow row;
  row.info = {.id = block.id,
              .stream = draft.stream,
              .span = draft.span,
              .sink_tokens = draft.sink_tokens,
              .source = draft.source,
              .created_at = draft.created_at + 0.0,  // -0.0 becomes 0, because SQLite returns it as 0
              .tags = draft.tags,
              .pages = static_cast<int32_t>(block.rows.size()),
              .payload_bytes = static_cast<int64_t>(draft.payload.size()),
              .role = draft.role,
              .token_crc = Crc32c(std::as_bytes(draft.token_ids))};
  row.role = static_cast<int64_t>(draft.role);
  const BlockInfo& info = row.info;
  EVERLONG_RETURN_IF_ERROR(database.Run(kInsertBlock, info.id, row.state, info.stream, info.span.begin, info.span.end,
                                        info.sink_tokens, info.created_at, info.pages, info.payload_bytes,
                                        row.Checksum(), info.token_crc, info.source, row.role, draft.token_ids));
  for (size_t i = 0; i < draft.tags.size(); ++i) {
    EVERLONG_RETURN_IF_ERROR(database.Run(kInsertTag, block.id, i, draft.tags[i]));
  }
  for (size_t page = 0; page < block.rows.size(); ++page) {
    EVERLONG_RETURN_IF_ERROR(
        InsertPage(database, block.id, PayloadKind::kKv, static_cast<int64_t>(page), block.rows[page]));
  }
  if (block.tensors) EVERLONG_RETURN_IF_ERROR(InsertTensors(database, block.id, *block.tensors));
  EVERLONG_RETURN_IF_ERROR(totals.Enter(database, block.id));
  return ApplyChange(database, draft.graph, totals, block.id);
}

// Delete all rows of blocks that are forgotten, or whose totals are unknown.
Status DeleteBlocks(Database& database, std::span<const int64_t> ids, ChangingTotals& totals) {
  for (const int64_t id : ids) {
    for (const std::string_view sql : {kDeletePages, kDeleteTags, kDeleteTensors, kDeleteBlock}) {
      EVERLONG_RETURN_IF_ERROR(database.Run(sql, id));
    }
    EVERLONG_RETURN_IF_ERROR(DropNode(database, id, totals));
  }
  return OkStatus();
}

}  // namespace

Status Catalog::ReserveIdsBelow(int64_t next) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  EVERLONG_RETURN_IF_ERROR(turn.database.Run(kInsertSequence, next - 1));
  EVERLONG_RETURN_IF_ERROR(turn.database.Run(kUpdateSequence, next - 1));
  return turn.transaction->Commit();
}

Status Catalog::Commit(CatalogFile::Turn& turn, ChangingTotals& totals) {
  EVERLONG_RETURN_IF_ERROR(turn.transaction->Commit());
  totals.Keep();
  return OkStatus();
}

Status Catalog::Insert(std::span<const NewBlock> blocks) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  ChangingTotals totals(totals_);
  for (const NewBlock& block : blocks) EVERLONG_RETURN_IF_ERROR(InsertBlock(turn.database, block, totals));
  return Commit(turn, totals);
}

Result<std::vector<PageRow>> Catalog::ReplacePages(int64_t id, std::span<const PageRow> rows, int64_t payload_bytes,
                                                   std::span<const std::string> tags) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(turn.database, id));
  ChangingTotals totals(totals_);
  EVERLONG_RETURN_IF_ERROR(totals.Leave(turn.database, id));
  EVERLONG_ASSIGN_OR_RETURN(std::vector<PageRow> old, RecordsOf(turn.database, id, PayloadKind::kKv));
  EVERLONG_RETURN_IF_ERROR(turn.database.Run(kDeletePagesOf, id, PayloadKind::kKv));
  for (size_t page = 0; page < rows.size(); ++page) {
    EVERLONG_RETURN_IF_ERROR(InsertPage(turn.database, id, PayloadKind::kKv, static_cast<int64_t>(page), rows[page]));
  }
  row.info.tags.assign(tags.begin(), tags.end());
  row.info.payload_bytes = payload_bytes;
  EVERLONG_RETURN_IF_ERROR(PutTags(turn.database, id, tags));
  EVERLONG_RETURN_IF_ERROR(turn.database.Run(kUpdatePayload, payload_bytes, row.Checksum(), id));
  EVERLONG_RETURN_IF_ERROR(totals.Enter(turn.database, id));
  EVERLONG_RETURN_IF_ERROR(Commit(turn, totals));
  known_.Drop({&id, 1});
  return old;
}

Status Catalog::AddTags(int64_t id, std::span<const std::string> tags) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(turn.database, id));
  for (const std::string& tag : tags) {
    if (std::ranges::find(row.info.tags, tag) == row.info.tags.end()) row.info.tags.push_back(tag);
  }
  EVERLONG_RETURN_IF_ERROR(PutTags(turn.database, id, row.info.tags));
  EVERLONG_RETURN_IF_ERROR(PutState(turn.database, row));
  return turn.transaction->Commit();
}

Status Catalog::SetTags(int64_t id, std::span<const std::string> tags) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(turn.database, id));
  row.info.tags.assign(tags.begin(), tags.end());
  EVERLONG_RETURN_IF_ERROR(PutTags(turn.database, id, row.info.tags));
  EVERLONG_RETURN_IF_ERROR(PutState(turn.database, row));
  return turn.transaction->Commit();
}

Status Catalog::ChangeGraph(const GraphChange& change) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  ChangingTotals totals(totals_);
  EVERLONG_RETURN_IF_ERROR(ApplyChange(turn.database, change, totals));
  return Commit(turn, totals);
}

Status Catalog::Forget(std::span<const int64_t> ids, const GraphChange& change) {
  const std::set<int64_t> once(ids.begin(), ids.end());
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  ChangingTotals totals(totals_);
  for (const int64_t id : once) {
    EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(turn.database, id));
    EVERLONG_RETURN_IF_ERROR(totals.Leave(turn.database, id));
    row.state = kForgotten;
    EVERLONG_RETURN_IF_ERROR(PutState(turn.database, row));
    EVERLONG_RETURN_IF_ERROR(DropNode(turn.database, id, totals));
  }
  if (!once.empty()) EVERLONG_RETURN_IF_ERROR(CountForgetting(turn.database));
  EVERLONG_RETURN_IF_ERROR(ApplyChange(turn.database, change, totals));
  EVERLONG_RETURN_IF_ERROR(Commit(turn, totals));
  known_.Drop(ids);
  return OkStatus();
}

Status Catalog::Drop(std::span<const int64_t> ids, std::span<const RecordRow> records, const GraphChange& lost) {
  // Rows that belong to nothing that is there.
  constexpr std::array kSweeps = {
      "DELETE FROM blocks WHERE id = 0",  // it names no block in `ids`
      "DELETE FROM pages WHERE block NOT IN (SELECT id FROM blocks) OR NOT " EVERLONG_HAS_PAGE_KEY,
      "DELETE FROM tags WHERE block NOT IN (SELECT id FROM blocks)",
      "DELETE FROM tensors WHERE NOT EXISTS "
      "(SELECT 1 FROM pages WHERE pages.block = tensors.block AND pages.kind = tensors.kind)",
      "DELETE FROM nodes WHERE kind = 1 AND id NOT IN (SELECT id FROM blocks WHERE state = 0)",
      "DELETE FROM edges WHERE source NOT IN (SELECT id FROM nodes) OR target NOT IN (SELECT id FROM nodes) OR "
      "NOT " EVERLONG_HAS_EDGE_KEY};
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  totals_.reset();  // damaged rows say nothing of what they counted for
  ChangingTotals totals(totals_);
  EVERLONG_RETURN_IF_ERROR(DeleteBlocks(turn.database, ids, totals));
  if (!ids.empty()) EVERLONG_RETURN_IF_ERROR(CountForgetting(turn.database));
  for (const RecordRow& record : records) {
    EVERLONG_RETURN_IF_ERROR(turn.database.Run(kDeletePage, record.block, record.kind, record.page));
    EVERLONG_RETURN_IF_ERROR(turn.database.Run(kDeleteTensorsOf, record.block, record.kind));
  }
  EVERLONG_RETURN_IF_ERROR(ApplyChange(turn.database, lost, totals));
  for (const char* const sweep : kSweeps) EVERLONG_RETURN_IF_ERROR(turn.database.Execute(sweep));
  EVERLONG_RETURN_IF_ERROR(turn.transaction->Commit());
  known_.Drop(ids);
  return turn.database.Execute("VACUUM");
}

Status Catalog::DropForgotten() {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<int64_t> forgotten, SelectNumbers(turn.database, kSelectForgotten));
  for (const int64_t id : forgotten) {
    EVERLONG_RETURN_IF_ERROR(FindBlock(turn.database, id).status());  // kCorrupt: its state may be damaged
  }
  ChangingTotals totals(totals_);
  EVERLONG_RETURN_IF_ERROR(DeleteBlocks(turn.database, forgotten, totals));
  EVERLONG_RETURN_IF_ERROR(Commit(turn, totals));
  known_.Drop(forgotten);
  return OkStatus();
}

Result<std::vector<PageRow>> Catalog::TakeOut(std::span<const int64_t> ids) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file_->Write());
  std::vector<PageRow> rows;
  for (const int64_t id : ids) {
    EVERLONG_ASSIGN_OR_RETURN(std::vector<PageRow> records, RecordsOf(turn.database, id));
    std::ranges::move(records, std::back_inserter(rows));
  }
  ChangingTotals totals(totals_);
  EVERLONG_RETURN_IF_ERROR(DeleteBlocks(turn.database, ids, totals));
  EVERLONG_RETURN_IF_ERROR(Commit(turn, totals));
  known_.Drop(ids);
  return rows;
}

}  // namespace everlong::store
