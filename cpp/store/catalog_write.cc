// The catalog's writes: blocks that come and go.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "catalog.h"
#include "catalog_rows.h"
#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"

namespace everlong::store {
namespace {

constexpr std::string_view kInsertBlock =
    "INSERT INTO blocks (id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, crc, "
    "token_crc, source, role, token_ids) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr std::string_view kInsertTag = "INSERT INTO tags (block, position, tag) VALUES (?, ?, ?)";
constexpr std::string_view kUpdateState = "UPDATE blocks SET state = ?, crc = ? WHERE id = ?";
constexpr std::string_view kDeletePages = "DELETE FROM pages WHERE block = ?";
constexpr std::string_view kDeleteTensors = "DELETE FROM tensors WHERE block = ?";
constexpr std::string_view kDeleteTensorsOf = "DELETE FROM tensors WHERE block = ? AND kind = ?";
constexpr std::string_view kDeleteTags = "DELETE FROM tags WHERE block = ?";
constexpr std::string_view kDeleteBlock = "DELETE FROM blocks WHERE id = ?";
constexpr std::string_view kSelectForgotten = "SELECT id FROM blocks WHERE state <> 0";
constexpr std::string_view kUpdateSequence = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'blocks'";
constexpr std::string_view kInsertSequence =
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'blocks', ? WHERE NOT EXISTS "
    "(SELECT 1 FROM sqlite_sequence WHERE name = 'blocks')";
constexpr std::string_view kSnapshot = "VACUUM INTO ?";

}  // namespace

Status Catalog::ReserveIdsBelow(int64_t next) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  for (const std::string_view sql : {kInsertSequence, kUpdateSequence}) {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(sql));
    EVERLONG_RETURN_IF_ERROR(query.Bind(next - 1).Run());
  }
  return transaction.Commit();
}

Status Catalog::InsertPages(int64_t id, std::span<const PageRow> rows) {
  EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kInsertPage));
  for (size_t page = 0; page < rows.size(); ++page) {
    insert.Rewind();
    BindPage(insert, id, PayloadKind::kKv, static_cast<int64_t>(page), rows[page]);
    EVERLONG_RETURN_IF_ERROR(insert.Run());
  }
  return OkStatus();
}

Status Catalog::Insert(std::span<const NewBlock> blocks) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  for (const NewBlock& block : blocks) {
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
                .role = draft.role};
    row.role = static_cast<int64_t>(draft.role);
    row.info.token_crc = Crc32c(std::as_bytes(draft.token_ids));
    {
      EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kInsertBlock));
      insert.Bind(block.id).Bind(row.state).Bind(draft.stream).Bind(draft.span.begin).Bind(draft.span.end);
      insert.Bind(int64_t{draft.sink_tokens}).Bind(row.info.created_at).Bind(int64_t{row.info.pages});
      insert.Bind(row.info.payload_bytes).Bind(int64_t{row.Checksum()}).Bind(int64_t{row.info.token_crc});
      insert.Bind(draft.source).Bind(row.role).Bind(std::as_bytes(draft.token_ids));
      EVERLONG_RETURN_IF_ERROR(insert.Run());
    }
    {
      EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kInsertTag));
      for (size_t i = 0; i < draft.tags.size(); ++i) {
        insert.Rewind();
        EVERLONG_RETURN_IF_ERROR(insert.Bind(block.id).Bind(static_cast<int64_t>(i)).Bind(draft.tags[i]).Run());
      }
    }
    EVERLONG_RETURN_IF_ERROR(InsertPages(block.id, block.rows));
    if (block.tensors) EVERLONG_RETURN_IF_ERROR(InsertTensors(block.id, *block.tensors));
    EVERLONG_RETURN_IF_ERROR(Apply(draft.graph, block.id));
  }
  return transaction.Commit();
}

Status Catalog::AddTags(int64_t id, std::span<const std::string> tags) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(id));
  for (const std::string& tag : tags) {
    if (std::ranges::find(row.info.tags, tag) != row.info.tags.end()) continue;
    EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kInsertTag));
    EVERLONG_RETURN_IF_ERROR(insert.Bind(id).Bind(std::ssize(row.info.tags)).Bind(tag).Run());
    row.info.tags.push_back(tag);
  }
  EVERLONG_ASSIGN_OR_RETURN(Query update, database_.Prepare(kUpdateState));
  EVERLONG_RETURN_IF_ERROR(update.Bind(row.state).Bind(int64_t{row.Checksum()}).Bind(id).Run());
  return transaction.Commit();
}

Status Catalog::Forget(std::span<const int64_t> ids, const GraphChange& change) {
  std::vector<int64_t> once(ids.begin(), ids.end());
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  for (const int64_t id : once) {
    EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(id));
    row.state = kForgotten;
    EVERLONG_ASSIGN_OR_RETURN(Query update, database_.Prepare(kUpdateState));
    EVERLONG_RETURN_IF_ERROR(update.Bind(row.state).Bind(int64_t{row.Checksum()}).Bind(id).Run());
    EVERLONG_RETURN_IF_ERROR(DropNode(id));
  }
  EVERLONG_RETURN_IF_ERROR(Apply(change));
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  DropKnownRowsOf(once);
  return OkStatus();
}

Status Catalog::DeleteBlocks(std::span<const int64_t> ids) {
  for (const int64_t id : ids) {
    for (const std::string_view sql : {kDeletePages, kDeleteTags, kDeleteTensors, kDeleteBlock}) {
      EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(sql));
      EVERLONG_RETURN_IF_ERROR(query.Bind(id).Run());
    }
    EVERLONG_RETURN_IF_ERROR(DropNode(id));
  }
  return OkStatus();
}

void Catalog::DropKnownRowsOf(std::span<const int64_t> ids) {
  const std::scoped_lock known(known_mutex_);
  for (const int64_t id : ids) Unknow(id);
}

Status Catalog::Drop(std::span<const int64_t> ids, std::span<const RecordRow> records, const GraphChange& lost) {
  // Rows that belong to nothing that is there.
  constexpr std::array kSweeps = {
      "DELETE FROM pages WHERE block NOT IN (SELECT id FROM blocks)",
      "DELETE FROM tags WHERE block NOT IN (SELECT id FROM blocks)",
      "DELETE FROM tensors WHERE NOT EXISTS "
      "(SELECT 1 FROM pages WHERE pages.block = tensors.block AND pages.kind = tensors.kind)",
      "DELETE FROM nodes WHERE kind = 1 AND id NOT IN (SELECT id FROM blocks WHERE state = 0)",
      "DELETE FROM edges WHERE source NOT IN (SELECT id FROM nodes) OR target NOT IN (SELECT id FROM nodes)"};
  const std::scoped_lock lock(mutex_);
  {
    EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
    EVERLONG_RETURN_IF_ERROR(DeleteBlocks(ids));
    for (const RecordRow& record : records) {
      EVERLONG_ASSIGN_OR_RETURN(Query page, database_.Prepare(kDeletePage));
      page.Bind(record.block).Bind(static_cast<int64_t>(record.kind)).Bind(int64_t{record.page});
      EVERLONG_RETURN_IF_ERROR(page.Run());
      EVERLONG_ASSIGN_OR_RETURN(Query tensors, database_.Prepare(kDeleteTensorsOf));
      EVERLONG_RETURN_IF_ERROR(tensors.Bind(record.block).Bind(static_cast<int64_t>(record.kind)).Run());
    }
    EVERLONG_RETURN_IF_ERROR(Apply(lost));
    for (const char* const sweep : kSweeps) EVERLONG_RETURN_IF_ERROR(database_.Execute(sweep));
    EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  }
  DropKnownRowsOf(ids);
  return database_.Execute("VACUUM");
}

Status Catalog::DropForgotten() {
  const std::scoped_lock lock(mutex_);
  std::vector<int64_t> forgotten;
  {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectForgotten));
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
      if (!more) break;
      forgotten.push_back(query.Int64(0));
    }
  }
  for (const int64_t id : forgotten)
    EVERLONG_RETURN_IF_ERROR(FindBlock(id).status());  // kCorrupt: its state may be damaged
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  EVERLONG_RETURN_IF_ERROR(DeleteBlocks(forgotten));
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  DropKnownRowsOf(forgotten);
  return OkStatus();
}

Result<std::vector<PageRow>> Catalog::TakeOut(std::span<const int64_t> ids) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  std::vector<PageRow> rows;
  for (const int64_t id : ids) {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectPages));
    query.Bind(id);
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
      if (!more) break;
      if (std::optional<PageRow> row = PageOf(query, id)) rows.push_back(*std::move(row));
    }
  }
  EVERLONG_RETURN_IF_ERROR(DeleteBlocks(ids));
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  DropKnownRowsOf(ids);
  return rows;
}

Status Catalog::Rewrite() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(database_.Execute("VACUUM"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t busy, SelectNumber(database_, "PRAGMA wal_checkpoint(TRUNCATE)"));
  if (busy == 0) return OkStatus();
  return BusyError("'" + database_.name() + "': a reader kept the log in use, forgotten rows are still in it: again");
}

Status Catalog::Snapshot(const FilePath& file) {
  // SQLite would create it readable for others.
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd made, OpenFile(file, O_RDWR | O_CREAT | O_EXCL));
  {
    const std::scoped_lock lock(mutex_);
    EVERLONG_RETURN_IF_ERROR(Refresh());
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSnapshot));
    EVERLONG_RETURN_IF_ERROR(query.Bind(file.SystemPath()).Run());
  }
  return SyncFile(made, file);
}

}  // namespace everlong::store
