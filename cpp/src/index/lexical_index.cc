#include "everlong/index/lexical_index.h"

#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "best_first.h"
#include "everlong/index/token_statistics.h"

namespace everlong::index {
namespace {

// What one search may cost. FTS5 pays about a microsecond for every row an id occurs in and, because OR asks every id
// at every row, a little for every pair of row and id. Common ids are the expensive ones and say the least (from half
// of the pages on, BM25's IDF is 0), so ids are taken rarest first until the rows are spent: an archive of a million
// tokens (16K pages) stays within 20 ms, and below this many rows a query is plain BM25.
constexpr int64_t kMaxRowsRead = 12'000;
constexpr size_t kMaxIds = 64;

Status SqliteError(sqlite3* database, const char* action) {
  return IoError(std::string("FTS5 could not ") + action + ": " + sqlite3_errmsg(database));
}

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

Result<Statement> Prepare(sqlite3* database, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(database, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK) {
    return SqliteError(database, "prepare a statement");
  }
  return Statement(statement);
}

// Leaves a statement ready for its next use, whatever way its user returns.
class ScopedReset {
 public:
  explicit ScopedReset(sqlite3_stmt* statement) : statement_(statement) {}
  ~ScopedReset() { sqlite3_reset(statement_); }
  ScopedReset(const ScopedReset&) = delete;
  ScopedReset& operator=(const ScopedReset&) = delete;

 private:
  sqlite3_stmt* statement_;
};

Status BindText(sqlite3* database, sqlite3_stmt* statement, int parameter, const std::string& text) {
  if (sqlite3_bind_text64(statement, parameter, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8) != SQLITE_OK) {
    return SqliteError(database, "bind a text");
  }
  return OkStatus();
}

std::string Words(std::span<const int32_t> token_ids, std::string_view separator) {
  std::string words;
  for (const int32_t id : token_ids) {
    if (!words.empty()) words.append(separator);
    words.append("t").append(std::to_string(id));
  }
  return words;
}

Status CheckTokenIds(std::span<const int32_t> token_ids) {
  const auto negative = std::ranges::find_if(token_ids, [](int32_t id) { return id < 0; });
  if (negative == token_ids.end()) return OkStatus();
  return InvalidArgumentError("token id is " + std::to_string(*negative) + ", expected 0 or more");
}

class Fts5Index final : public LexicalIndex {
 public:
  Fts5Index(Database database, Statement insert, Statement remove, Statement match)
      : database_(std::move(database)),
        insert_(std::move(insert)),
        remove_(std::move(remove)),
        match_(std::move(match)) {}

  Status Add(std::span<const int32_t> token_ids) override {
    EVERLONG_RETURN_IF_ERROR(CheckTokenIds(token_ids));
    EVERLONG_RETURN_IF_ERROR(Run(insert_.get(), pages_, token_ids, "add a page"));
    statistics_.AddPage(token_ids);
    ++pages_;
    return OkStatus();
  }

  Status Remove(int32_t page, std::span<const int32_t> token_ids) override {
    EVERLONG_RETURN_IF_ERROR(Run(remove_.get(), page, token_ids, "remove a page"));
    statistics_.RemovePage(token_ids);
    return OkStatus();
  }

  Result<std::vector<Hit>> Search(std::span<const int32_t> token_ids, int32_t k,
                                  const PageFilter& filter) const override {
    EVERLONG_RETURN_IF_ERROR(CheckTokenIds(token_ids));
    if (k < 1) return InvalidArgumentError("k is " + std::to_string(k) + ", expected at least 1");
    const std::vector<int32_t> ids = RarestIds(token_ids);
    const auto [first, last] = filter.Range();
    std::vector<Hit> hits;
    if (ids.empty() || first == last) return hits;
    const std::string query = Words(ids, " OR ");
    // One statement of one connection: searches beside each other take turns.
    const std::scoped_lock lock(statement_mutex_);
    const ScopedReset reset(match_.get());
    EVERLONG_RETURN_IF_ERROR(BindText(database_.get(), match_.get(), 1, query));
    // Rows outside the filter's range are not even scored.
    if (sqlite3_bind_int64(match_.get(), 2, first) != SQLITE_OK ||
        sqlite3_bind_int64(match_.get(), 3, last - 1) != SQLITE_OK) {
      return SqliteError(database_.get(), "bind a range of pages");
    }
    int code = SQLITE_OK;
    while ((code = sqlite3_step(match_.get())) == SQLITE_ROW) {
      const auto page = static_cast<int32_t>(sqlite3_column_int64(match_.get(), 0));
      // FTS5's bm25() is negative: the smaller, the better.
      if (filter.Allows(page)) hits.push_back({page, static_cast<float>(-sqlite3_column_double(match_.get(), 1))});
    }
    if (code != SQLITE_DONE) return SqliteError(database_.get(), "search");
    // Ranked here: cheaper than SQLite's sorter, and ties and the filter are ours.
    KeepBestFirst(hits, static_cast<size_t>(k), [](const Hit& hit) { return hit.page; });
    return hits;
  }

  float WholeScore(std::span<const int32_t> token_ids) const override {
    const std::vector<int32_t> looked_for = RarestIds(token_ids);
    std::set<int32_t> ids(looked_for.begin(), looked_for.end());
    std::ranges::copy_if(token_ids, std::inserter(ids, ids.end()),
                         [this](int32_t id) { return statistics_.DocumentFrequency(id) == 0; });
    double sum = 0;
    for (const int32_t id : ids) {
      // FTS5's inverse document frequency, which it keeps above 0.
      const auto with = static_cast<double>(statistics_.DocumentFrequency(id));
      const auto without = static_cast<double>(statistics_.pages()) - with;
      sum += std::max(std::log((without + 0.5) / (with + 0.5)), 1e-6);
    }
    return static_cast<float>(sum);
  }

  int32_t pages() const override { return pages_; }

  int64_t bytes() const override {
    int now = 0;
    int highest = 0;
    // The pages of a database in memory are its cache.
    sqlite3_db_status(database_.get(), SQLITE_DBSTATUS_CACHE_USED, &now, &highest, 0);
    return now + statistics_.bytes();
  }

 private:
  // Runs a statement of two parameters: ordinal and words.
  Status Run(sqlite3_stmt* statement, int32_t page, std::span<const int32_t> token_ids, const char* action) {
    const std::string text = Words(token_ids, " ");
    const ScopedReset reset(statement);
    EVERLONG_RETURN_IF_ERROR(BindText(database_.get(), statement, 2, text));
    if (sqlite3_bind_int64(statement, 1, page) != SQLITE_OK || sqlite3_step(statement) != SQLITE_DONE) {
      return SqliteError(database_.get(), action);
    }
    return OkStatus();
  }

  // The distinct ids that occur, rarest first, as many as one search may cost; at least one if any occurs.
  std::vector<int32_t> RarestIds(std::span<const int32_t> token_ids) const {
    std::vector<std::pair<int64_t, int32_t>> by_frequency;
    for (const int32_t id : token_ids) {
      const int64_t frequency = statistics_.DocumentFrequency(id);
      if (frequency > 0) by_frequency.emplace_back(frequency, id);
    }
    std::ranges::sort(by_frequency);
    by_frequency.erase(std::unique(by_frequency.begin(), by_frequency.end()), by_frequency.end());
    std::vector<int32_t> ids;
    int64_t rows = 0;
    for (const auto& [frequency, id] : by_frequency) {
      rows += frequency;
      if (!ids.empty() && (rows > kMaxRowsRead || ids.size() == kMaxIds)) break;
      ids.push_back(id);
    }
    return ids;
  }

  Database database_;
  Statement insert_;
  Statement remove_;
  Statement match_;
  mutable std::mutex statement_mutex_;
  TokenStatistics statistics_;
  int32_t pages_ = 0;
};

}  // namespace

Result<std::unique_ptr<LexicalIndex>> LexicalIndex::Create() {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(":memory:", &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  Database database(opened);
  if (code != SQLITE_OK) return SqliteError(database.get(), "open a database in memory");
  // Contentless: only the index is kept. bm25() needs detail=full; with less it is 0 on a contentless table. One
  // transaction is left open for good: nothing here outlives the process, and a commit a page would cost a segment a
  // page.
  constexpr const char* kSchema =
      "CREATE VIRTUAL TABLE pages USING fts5(ids, content='', tokenize='ascii');"
      "BEGIN";
  if (sqlite3_exec(database.get(), kSchema, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return SqliteError(database.get(), "create its table");
  }
  EVERLONG_ASSIGN_OR_RETURN(Statement insert, Prepare(database.get(), "INSERT INTO pages(rowid, ids) VALUES (?1, ?2)"));
  // A contentless table is told what stood in the row that goes.
  EVERLONG_ASSIGN_OR_RETURN(Statement remove,
                            Prepare(database.get(), "INSERT INTO pages(pages, rowid, ids) VALUES ('delete', ?1, ?2)"));
  EVERLONG_ASSIGN_OR_RETURN(Statement match, Prepare(database.get(),
                                                     "SELECT rowid, bm25(pages) FROM pages "
                                                     "WHERE pages MATCH ?1 AND rowid BETWEEN ?2 AND ?3"));
  return std::unique_ptr<LexicalIndex>(
      std::make_unique<Fts5Index>(std::move(database), std::move(insert), std::move(remove), std::move(match)));
}

}  // namespace everlong::index
