#include "catalog.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "everlong/base/file.h"
#include "record.h"
#include "row_checksum.h"

namespace everlong::store {
namespace {

constexpr int32_t kApplicationId = 0x45564C47;  // "EVLG" in the header of the file
constexpr int32_t kSchemaVersion = 1;
constexpr int64_t kLive = 0;
constexpr int64_t kForgotten = 1;

constexpr const char* kSchema = R"sql(
  PRAGMA application_id = 1163283527;
  PRAGMA user_version = 1;
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
static_assert(kApplicationId == 1163283527 && kSchemaVersion == 1, "the schema's text holds the same numbers");

constexpr std::string_view kInsertBlock =
    "INSERT INTO blocks (id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, crc, "
    "token_crc, source, token_ids) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr std::string_view kInsertTag = "INSERT INTO tags (block, position, tag) VALUES (?, ?, ?)";
constexpr std::string_view kInsertPage =
    "INSERT INTO pages (block, kind, page, segment, record_offset, record_bytes, part_bytes, part_crcs, crc) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr std::string_view kSelectBlock =
    "SELECT id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, crc, token_crc, "
    "source FROM blocks WHERE id = ?";
constexpr std::string_view kSelectBlocks =
    "SELECT id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, crc, token_crc, "
    "source FROM blocks ORDER BY id";
constexpr std::string_view kSelectTagsOf = "SELECT block, tag FROM tags WHERE block = ? ORDER BY position";
constexpr std::string_view kSelectTags = "SELECT block, tag FROM tags ORDER BY block, position";
constexpr std::string_view kSelectTokenIds = "SELECT token_ids FROM blocks WHERE id = ?";
constexpr std::string_view kSelectPages =
    "SELECT segment, record_offset, record_bytes, part_bytes, part_crcs, crc, kind, page FROM pages WHERE block = ? "
    "ORDER BY kind, page";
constexpr std::string_view kReplacePage =
    "INSERT OR REPLACE INTO pages (block, kind, page, segment, record_offset, record_bytes, part_bytes, part_crcs, "
    "crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr std::string_view kUpdateBlock =
    "UPDATE blocks SET state = ?, pages = ?, payload_bytes = ?, crc = ? WHERE id = ?";
constexpr std::string_view kDeletePages = "DELETE FROM pages WHERE block = ?";
constexpr std::string_view kDeletePage = "DELETE FROM pages WHERE block = ? AND kind = ? AND page = ?";
constexpr std::string_view kDeleteTags = "DELETE FROM tags WHERE block = ?";
constexpr std::string_view kDeleteBlock = "DELETE FROM blocks WHERE id = ?";
constexpr std::string_view kSelectForgotten = "SELECT id FROM blocks WHERE state <> 0";
constexpr std::string_view kCountOrphans = "SELECT count(*) FROM pages WHERE block NOT IN (SELECT id FROM blocks)";
constexpr std::string_view kUpdateSequence = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'blocks'";
constexpr std::string_view kInsertSequence =
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'blocks', ? WHERE NOT EXISTS "
    "(SELECT 1 FROM sqlite_sequence WHERE name = 'blocks')";
constexpr std::string_view kSnapshot = "VACUUM INTO ?";
constexpr std::string_view kCountTables = "SELECT count(*) FROM sqlite_master";
constexpr std::string_view kSelectHighestId = "SELECT coalesce(max(id), 0) FROM blocks";
constexpr std::string_view kSelectSequence =
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'blocks'), 0)";
constexpr std::string_view kSelectNewestSegment = "SELECT coalesce(max(segment), 0) FROM pages";

uint32_t PageChecksum(int64_t block, PayloadKind kind, int64_t page, const PageRow& row) {
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  return RowChecksum()
      .Add(block)
      .Add(static_cast<int64_t>(kind))
      .Add(page)
      .Add(int64_t{row.segment})
      .Add(row.offset)
      .Add(RecordBytes(parts, row.part_bytes))
      .Add(row.part_bytes)
      .Add(std::as_bytes(std::span(row.part_crcs)))
      .value();
}

// The record that a row of kSelectPages describes; none when the row does not match its checksum.
std::optional<PageRow> PageOf(const Query& query, int64_t block) {
  const std::span<const std::byte> crcs = query.Blob(4);
  // A damaged row may hold no checksum at all, and nothing must be copied from nowhere.
  if (crcs.empty() || crcs.size() % 4 != 0) return std::nullopt;
  PageRow row;
  row.segment = static_cast<int32_t>(query.Int64(0));
  row.offset = query.Int64(1);
  row.part_bytes = query.Int64(3);
  row.part_crcs.resize(crcs.size() / 4);
  std::memcpy(row.part_crcs.data(), crcs.data(), crcs.size());
  const auto kind = static_cast<PayloadKind>(query.Int64(6));
  if (PageChecksum(block, kind, query.Int64(7), row) != query.Int64(5)) return std::nullopt;
  return row;
}

// The values of kInsertPage and kReplacePage.
void BindPage(Query& query, int64_t block, PayloadKind kind, int64_t page, const PageRow& row) {
  query.Bind(block).Bind(static_cast<int64_t>(kind)).Bind(page).Bind(int64_t{row.segment}).Bind(row.offset);
  query.Bind(RecordBytes(static_cast<int64_t>(row.part_crcs.size()), row.part_bytes)).Bind(row.part_bytes);
  query.Bind(std::as_bytes(std::span(row.part_crcs))).Bind(int64_t{PageChecksum(block, kind, page, row)});
}

bool Chooses(const BlockFilter& filter, const BlockInfo& info) {
  return (!filter.source || info.source == *filter.source) &&
         (!filter.tag || std::find(info.tags.begin(), info.tags.end(), *filter.tag) != info.tags.end()) &&
         (!filter.since || info.created_at >= *filter.since) && (!filter.before || info.created_at < *filter.before);
}

// `path` as the path of a "file:" URI.
std::string UriPath(const std::filesystem::path& path) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string uri = "file:";
  for (const char c : path.string()) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '%' || c == '?' || c == '#') {
      uri.append({'%', kHex[byte >> 4U], kHex[byte & 15U]});
    } else {
      uri.push_back(c);
    }
  }
  return uri;
}

Result<int64_t> SelectNumber(Database& database, std::string_view sql) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(sql));
  EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
  if (!row) return CorruptError("'" + database.name() + "' gives no answer to " + std::string(sql));
  return query.Int64(0);
}

Status ConfigureWriter(Database& database) {
  EVERLONG_RETURN_IF_ERROR(database.Execute("PRAGMA synchronous = FULL"));
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare("PRAGMA journal_mode = WAL"));
  EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
  const std::string mode = row ? query.Text(0) : "none";
  // "memory" is what a catalog in RAM says.
  if (mode == "wal" || mode == "memory") return OkStatus();
  return IoError("'" + database.name() + "' cannot be written with a write-ahead log here (journal mode '" + mode +
                 "')");
}

}  // namespace

struct Catalog::BlockRow {
  BlockInfo info;
  int64_t state = kLive;
  uint32_t token_crc = 0;

  // Fields of the row that `query` stands on; tags come from their own table. The checksum that is stored with it is
  // column 9.
  static BlockRow Of(const Query& query) {
    BlockRow row;
    row.info.id = query.Int64(0);
    row.state = query.Int64(1);
    row.info.stream = query.Int64(2);
    row.info.span = {query.Int64(3), query.Int64(4)};
    row.info.sink_tokens = static_cast<int32_t>(query.Int64(5));
    row.info.created_at = query.Double(6);
    row.info.pages = static_cast<int32_t>(query.Int64(7));
    row.info.payload_bytes = query.Int64(8);
    row.token_crc = static_cast<uint32_t>(query.Int64(10));
    row.info.source = query.Text(11);
    return row;
  }
  static int64_t StoredChecksum(const Query& query) { return query.Int64(9); }

  [[nodiscard]] uint32_t Checksum() const {
    RowChecksum crc;
    crc.Add(info.id).Add(state).Add(info.stream).Add(info.span.begin).Add(info.span.end);
    crc.Add(int64_t{info.sink_tokens}).Add(info.created_at).Add(int64_t{info.pages}).Add(info.payload_bytes);
    crc.Add(int64_t{token_crc}).Add(info.source).Add(static_cast<int64_t>(info.tags.size()));
    for (const std::string& tag : info.tags) crc.Add(tag);
    return crc.value();
  }
};

Result<std::unique_ptr<Catalog>> Catalog::CreateInRam() {
  EVERLONG_ASSIGN_OR_RETURN(Database database,
                            Database::Open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "catalog in RAM"));
  EVERLONG_RETURN_IF_ERROR(ConfigureWriter(database));
  EVERLONG_RETURN_IF_ERROR(database.Execute(kSchema));
  return std::unique_ptr<Catalog>(new Catalog(std::move(database)));
}

Result<std::unique_ptr<Catalog>> Catalog::Create(const std::filesystem::path& file) {
  // SQLite gives its log files the mode of the database, and would itself create that readable for others.
  EVERLONG_RETURN_IF_ERROR(OpenFile(file, O_RDWR | O_CREAT | O_EXCL).status());
  EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file.string(), SQLITE_OPEN_READWRITE, file.string()));
  EVERLONG_RETURN_IF_ERROR(ConfigureWriter(database));
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database, Transaction::Kind::kWrite));
  EVERLONG_RETURN_IF_ERROR(database.Execute(kSchema));
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  return std::unique_ptr<Catalog>(new Catalog(std::move(database)));
}

Result<std::unique_ptr<Catalog>> Catalog::Open(const std::filesystem::path& file, bool read_only) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return CorruptError("catalog '" + file.string() + "' is missing");
  if (read_only) {
    std::unique_ptr<Catalog> catalog(new Catalog(Database()));
    catalog->file_ = file;
    EVERLONG_RETURN_IF_ERROR(catalog->OpenForReading());
    EVERLONG_RETURN_IF_ERROR(catalog->Verify());
    return catalog;
  }
  EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file.string(), SQLITE_OPEN_READWRITE, file.string()));
  std::unique_ptr<Catalog> catalog(new Catalog(std::move(database)));
  EVERLONG_RETURN_IF_ERROR(catalog->Verify());
  EVERLONG_RETURN_IF_ERROR(ConfigureWriter(catalog->database_));
  return catalog;
}

bool Catalog::HoldsNothing(const std::filesystem::path& file) {
  const auto count = [&file]() -> Result<int64_t> {
    EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file.string(), SQLITE_OPEN_READWRITE, file.string()));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t tables, SelectNumber(database, kCountTables));
    if (tables == 0) return 0;
    EVERLONG_ASSIGN_OR_RETURN(const int64_t application, SelectNumber(database, "PRAGMA application_id"));
    return application == kApplicationId ? SelectNumber(database, kSelectSequence) : Result<int64_t>(tables);
  };
  const Result<int64_t> held = count();
  return held.ok() && *held == 0;
}

Catalog::FileState Catalog::Look(const std::filesystem::path& file) {
  FileState state;
  struct stat status = {};
  if (::stat(file.c_str(), &status) == 0) {
    state.size = status.st_size;
    state.modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
    state.inode = status.st_ino;
  }
  state.has_wal = ::stat((file.string() + "-wal").c_str(), &status) == 0;
  return state;
}

Status Catalog::OpenForReading() {
  const FileState seen = Look(file_);
  EVERLONG_ASSIGN_OR_RETURN(Database database, Database::Open(file_.string(), SQLITE_OPEN_READONLY, file_.string()));
  const Result<int64_t> probe = SelectNumber(database, "PRAGMA schema_version");
  immutable_as_.reset();
  if (!probe.ok() && probe.status().code() == StatusCode::kIoError && !seen.has_wal) {
    // No writer and no right to make the log's files: the file is whole by itself.
    EVERLONG_ASSIGN_OR_RETURN(database, Database::Open(UriPath(file_) + "?immutable=1",
                                                       SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, file_.string()));
    immutable_as_ = seen;
  } else if (!probe.ok()) {
    return probe.status();
  }
  database_ = std::move(database);
  // What the last connection's data_version_ says of the known rows means nothing to this one: each counts for itself.
  DropKnownRows();
  return OkStatus();
}

Status Catalog::Refresh() {
  if (!immutable_as_ || Look(file_) == *immutable_as_) return OkStatus();
  return OpenForReading();
}

Status Catalog::Verify() {
  EVERLONG_ASSIGN_OR_RETURN(const int64_t application, SelectNumber(database_, "PRAGMA application_id"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t version, SelectNumber(database_, "PRAGMA user_version"));
  if (application != kApplicationId) return CorruptError("'" + database_.name() + "' is not a catalog of everlong");
  if (version > kSchemaVersion) {
    return NewerFormatError("catalog '" + database_.name() + "' has format " + std::to_string(version) +
                            "; this everlong reads up to " + std::to_string(kSchemaVersion) + ": update it");
  }
  if (version != kSchemaVersion) {
    return CorruptError("catalog '" + database_.name() + "' has format " + std::to_string(version));
  }
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare("PRAGMA quick_check(1)"));
  EVERLONG_ASSIGN_OR_RETURN(const bool row, query.Step());
  const std::string found = row ? query.Text(0) : "no answer";
  if (found != "ok") return CorruptError("catalog '" + database_.name() + "' is damaged: " + found);
  EVERLONG_ASSIGN_OR_RETURN(const int64_t highest, SelectNumber(database_, kSelectHighestId));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t sequence, SelectNumber(database_, kSelectSequence));
  if (sequence < highest) {
    return CorruptError("catalog '" + database_.name() + "' is damaged: block " + std::to_string(highest) +
                        " is above the last id given, " + std::to_string(sequence));
  }
  if (sequence > kLargestBlockId) {
    return CorruptError("catalog '" + database_.name() + "' is damaged: the last id given is " +
                        std::to_string(sequence));
  }
  return OkStatus();
}

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
                .created_at = draft.created_at,
                .tags = draft.tags,
                .pages = static_cast<int32_t>(block.rows.size()),
                .payload_bytes = static_cast<int64_t>(draft.payload.size())};
    row.token_crc = Crc32c(std::as_bytes(draft.token_ids));
    {
      EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kInsertBlock));
      insert.Bind(block.id).Bind(row.state).Bind(draft.stream).Bind(draft.span.begin).Bind(draft.span.end);
      insert.Bind(int64_t{draft.sink_tokens}).Bind(draft.created_at).Bind(int64_t{row.info.pages});
      insert.Bind(row.info.payload_bytes).Bind(int64_t{row.Checksum()}).Bind(int64_t{row.token_crc});
      insert.Bind(draft.source).Bind(std::as_bytes(draft.token_ids));
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
  }
  return transaction.Commit();
}

// state, pages and payload_bytes as `row` has them now.
Status Catalog::WriteBlockRow(const BlockRow& row) {
  EVERLONG_ASSIGN_OR_RETURN(Query update, database_.Prepare(kUpdateBlock));
  update.Bind(row.state).Bind(int64_t{row.info.pages}).Bind(row.info.payload_bytes);
  return update.Bind(int64_t{row.Checksum()}).Bind(row.info.id).Run();
}

Status Catalog::AddKv(int64_t id, std::span<const PageRow> rows) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(id));
  if (row.info.pages != 0) return AlreadyExistsError("block " + std::to_string(id) + " has its kv already");
  row.info.pages = static_cast<int32_t>(rows.size());
  for (const PageRow& page : rows) {
    row.info.payload_bytes += page.part_bytes * static_cast<int64_t>(page.part_crcs.size());
  }
  EVERLONG_RETURN_IF_ERROR(InsertPages(id, rows));
  EVERLONG_RETURN_IF_ERROR(WriteBlockRow(row));
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  const std::scoped_lock known(known_mutex_);
  known_.erase(id);
  return OkStatus();
}

Status Catalog::PutRecord(int64_t id, PayloadKind kind, const PageRow& row) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  EVERLONG_RETURN_IF_ERROR(LiveBlock(id).status());
  {
    EVERLONG_ASSIGN_OR_RETURN(Query insert, database_.Prepare(kReplacePage));
    BindPage(insert, id, kind, 0, row);
    EVERLONG_RETURN_IF_ERROR(insert.Run());
  }
  return transaction.Commit();
}

Result<std::vector<BlockInfo>> Catalog::Blocks(const BlockFilter& filter, std::vector<Damage>* damage) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  return SelectBlocks(filter, damage);
}

Result<std::vector<BlockInfo>> Catalog::SelectBlocks(const BlockFilter& filter, std::vector<Damage>* damage) {
  std::map<int64_t, std::vector<std::string>> tags;
  {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectTags));
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
      if (!more) break;
      tags[query.Int64(0)].push_back(query.Text(1));
    }
  }
  std::vector<BlockInfo> blocks;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectBlocks));
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    BlockRow row = BlockRow::Of(query);
    if (const auto found = tags.find(row.info.id); found != tags.end()) row.info.tags = std::move(found->second);
    if (row.Checksum() != BlockRow::StoredChecksum(query)) {
      const std::string what =
          "catalog '" + database_.name() + "': checksum mismatch in the row of block " + std::to_string(row.info.id);
      if (damage == nullptr) return CorruptError(what);
      damage->push_back({row.info.id, what});
      continue;
    }
    if (row.state == kLive && Chooses(filter, row.info)) blocks.push_back(std::move(row.info));
  }
  return blocks;
}

Result<std::optional<Catalog::BlockRow>> Catalog::FindBlock(int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectBlock));
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
  if (row.Checksum() != BlockRow::StoredChecksum(query)) {
    return CorruptError("catalog '" + database_.name() + "': checksum mismatch in the row of block " +
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
  if (static_cast<int64_t>(blob.size()) != row.info.span.size() * 4 || Crc32c(blob) != row.token_crc) {
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
}

// Under mutex_.
Result<Catalog::KnownRows> Catalog::LoadRows(int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const BlockRow block, LiveBlock(id));
  const auto pages = static_cast<size_t>(block.info.pages);
  auto rows = std::make_shared<std::vector<std::shared_ptr<const PageRow>>>(pages);
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectPages));
  query.Bind(id);
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    const int64_t page = query.Int64(7);
    if (query.Int64(6) != static_cast<int64_t>(PayloadKind::kKv) || page < 0 || page >= block.info.pages) continue;
    if (std::optional<PageRow> row = PageOf(query, id)) {
      (*rows)[static_cast<size_t>(page)] = std::make_shared<const PageRow>(*std::move(row));
    }
  }
  KnownRows known = std::move(rows);
  const std::scoped_lock lock(known_mutex_);
  known_[id] = known;
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
  if (!file_.empty()) {
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
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectPages));
  query.Bind(id);
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    if (query.Int64(6) != static_cast<int64_t>(kind) || query.Int64(7) != 0) continue;
    std::optional<PageRow> row = PageOf(query, id);
    if (row) return *std::move(row);
    return CorruptError("catalog '" + database_.name() + "': the row of block " + std::to_string(id) + " kind " +
                        std::to_string(static_cast<int64_t>(kind)) + " does not match its checksum");
  }
  return NotFoundError("block " + std::to_string(id) + " has no payload of kind " +
                       std::to_string(static_cast<int64_t>(kind)));
}

Result<std::vector<RecordRow>> Catalog::Records(std::vector<Damage>* damage) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  // Blocks and their pages out of one state: a writer beside this reader commits whenever it likes.
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
      const auto kind = static_cast<PayloadKind>(query.Int64(6));
      const int64_t page = query.Int64(7);
      std::optional<PageRow> row = PageOf(query, block.id);
      if (!row || (kind == PayloadKind::kKv && page != pages)) {
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

Status Catalog::Forget(std::span<const int64_t> ids) {
  std::vector<int64_t> once(ids.begin(), ids.end());
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  for (const int64_t id : once) {
    EVERLONG_ASSIGN_OR_RETURN(BlockRow row, LiveBlock(id));
    row.state = kForgotten;
    EVERLONG_RETURN_IF_ERROR(WriteBlockRow(row));
  }
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  DropKnownRowsOf(once);
  return OkStatus();
}

Status Catalog::DeleteBlocks(std::span<const int64_t> ids) {
  for (const int64_t id : ids) {
    for (const std::string_view sql : {kDeletePages, kDeleteTags, kDeleteBlock}) {
      EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(sql));
      EVERLONG_RETURN_IF_ERROR(query.Bind(id).Run());
    }
  }
  return OkStatus();
}

void Catalog::DropKnownRowsOf(std::span<const int64_t> ids) {
  const std::scoped_lock known(known_mutex_);
  for (const int64_t id : ids) known_.erase(id);
}

Status Catalog::Drop(std::span<const int64_t> ids, std::span<const RecordRow> records) {
  const std::scoped_lock lock(mutex_);
  {
    EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
    EVERLONG_RETURN_IF_ERROR(DeleteBlocks(ids));
    for (const RecordRow& record : records) {
      EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kDeletePage));
      query.Bind(record.block).Bind(static_cast<int64_t>(record.kind)).Bind(int64_t{record.page});
      EVERLONG_RETURN_IF_ERROR(query.Run());
    }
    EVERLONG_RETURN_IF_ERROR(database_.Execute("DELETE FROM pages WHERE block NOT IN (SELECT id FROM blocks)"));
    EVERLONG_RETURN_IF_ERROR(database_.Execute("DELETE FROM tags WHERE block NOT IN (SELECT id FROM blocks)"));
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
    EVERLONG_RETURN_IF_ERROR(FindBlock(id).status());  // kCorrupt: state may be damaged
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  EVERLONG_RETURN_IF_ERROR(DeleteBlocks(forgotten));
  EVERLONG_RETURN_IF_ERROR(transaction.Commit());
  DropKnownRowsOf(forgotten);
  return OkStatus();
}

Status Catalog::Rewrite() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(database_.Execute("VACUUM"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t busy, SelectNumber(database_, "PRAGMA wal_checkpoint(TRUNCATE)"));
  if (busy == 0) return OkStatus();
  return BusyError("'" + database_.name() + "': a reader kept the log in use, forgotten rows are still in it: again");
}

Status Catalog::Snapshot(const std::filesystem::path& file) {
  // SQLite itself would create it readable for others.
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd made, OpenFile(file, O_RDWR | O_CREAT | O_EXCL));
  {
    const std::scoped_lock lock(mutex_);
    EVERLONG_RETURN_IF_ERROR(Refresh());
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSnapshot));
    EVERLONG_RETURN_IF_ERROR(query.Bind(file.string()).Run());
  }
  return SyncFile(made, file);
}

}  // namespace everlong::store
