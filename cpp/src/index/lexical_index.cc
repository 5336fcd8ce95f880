#include "lexical_index.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "best_first.h"
#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/sqlite.h"
#include "everlong/index/token_statistics.h"

namespace everlong::index {
namespace {

// What one search may cost. FTS5 pays about a microsecond for every row an id occurs in and, because OR asks every id
// at every row, a little for every pair of row and id. Common ids are the expensive ones and say the least (from half
// of the pages on, BM25's IDF is 0), so ids are taken rarest first until the rows are spent: an archive of a million
// tokens (16K pages) stays within 20 ms, and below this many rows a query is plain BM25.
constexpr int64_t kMaxRowsRead = 12'000;
constexpr size_t kMaxIds = 64;

constexpr std::string_view kInsert = "INSERT INTO pages(rowid, ids) VALUES (?1, ?2)";
// A contentless table is told what stood in the row that goes.
constexpr std::string_view kRemove = "INSERT INTO pages(pages, rowid, ids) VALUES ('delete', ?1, ?2)";
// FTS5 would merge what it has written by itself, when that is much and for as long as it takes (tens of milliseconds,
// at a million tokens). Instead a little is merged after every row, and searches come between.
constexpr std::string_view kMerge = "INSERT INTO pages(pages, rank) VALUES ('merge', 4)";
constexpr std::string_view kMatch =
    "SELECT rowid, bm25(pages) FROM pages WHERE pages MATCH ?1 AND rowid BETWEEN ?2 AND ?3";

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
  Fts5Index(Database database, const TokenStatistics& statistics)
      : database_(std::move(database)), statistics_(statistics) {}

  Status Add(int32_t page, std::span<const int32_t> token_ids) override {
    EVERLONG_RETURN_IF_ERROR(CheckTokenIds(token_ids));
    EVERLONG_RETURN_IF_ERROR(Run(kInsert, page, token_ids));
    return Merge();
  }

  Status Remove(int32_t page, std::span<const int32_t> token_ids) override {
    EVERLONG_RETURN_IF_ERROR(Run(kRemove, page, token_ids));
    return Merge();
  }

  Result<std::vector<Hit>> Search(std::span<const int32_t> token_ids, int32_t k,
                                  const PageFilter& filter) const override {
    EVERLONG_RETURN_IF_ERROR(CheckTokenIds(token_ids));
    if (k < 1) return InvalidArgumentError("k is " + std::to_string(k) + ", expected at least 1");
    const std::vector<int32_t> ids = RarestIds(token_ids);
    const auto [first, last] = filter.Range();
    std::vector<Hit> hits;
    if (ids.empty() || first == last) return hits;
    // One connection: searches beside each other take turns.
    const std::unique_lock lock(mutex_);
    EVERLONG_ASSIGN_OR_RETURN(Query match, database_.Prepare(kMatch));
    // Rows outside the filter's range are not even scored.
    match.Bind(Words(ids, " OR ")).Bind(int64_t{first}).Bind(int64_t{last} - 1);
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool row, match.Step());
      if (!row) break;
      const auto page = static_cast<int32_t>(match.Int64(0));
      // FTS5's bm25() is negative: the smaller, the better.
      if (filter.Allows(page)) hits.push_back({page, static_cast<float>(-match.Double(1))});
    }
    // Ranked here: cheaper than SQLite's sorter, and ties and the filter are ours.
    KeepBestFirst(hits, static_cast<size_t>(k), [](const Hit& hit) { return hit.page; });
    return hits;
  }

  float WholeScore(std::span<const int32_t> token_ids) const override {
    const std::vector<int32_t> looked_for = RarestIds(token_ids);
    std::set<int32_t> ids(looked_for.begin(), looked_for.end());
    std::ranges::copy_if(token_ids, std::inserter(ids, ids.end()),
                         [this](int32_t id) { return statistics_.DocumentFrequency(id) == 0; });
    const std::vector<int32_t> distinct(ids.begin(), ids.end());
    const TokenStatistics::Frequencies frequencies = statistics_.DocumentFrequencies(distinct);
    double sum = 0;
    for (const int64_t frequency : frequencies.of_ids) {
      // FTS5's inverse document frequency, which it keeps above 0.
      const auto with = static_cast<double>(frequency);
      const auto without = static_cast<double>(frequencies.pages) - with;
      sum += std::max(std::log((without + 0.5) / (with + 0.5)), 1e-6);
    }
    return static_cast<float>(sum);
  }

  int64_t bytes() const override {
    const std::unique_lock lock(mutex_);
    return database_.CachedBytes();
  }

 private:
  // Runs a statement of two parameters: ordinal and words.
  Status Run(std::string_view sql, int32_t page, std::span<const int32_t> token_ids) {
    const std::string words = Words(token_ids, " ");
    const std::unique_lock lock(mutex_);
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(sql));
    return query.Bind(int64_t{page}).Bind(words).Run();
  }

  Status Merge() {
    const std::unique_lock lock(mutex_);
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kMerge));
    return query.Run();
  }

  // The distinct ids that occur, rarest first, as many as one search may cost; at least one if any occurs.
  std::vector<int32_t> RarestIds(std::span<const int32_t> token_ids) const {
    std::vector<std::pair<int64_t, int32_t>> by_frequency;
    const TokenStatistics::Frequencies frequencies = statistics_.DocumentFrequencies(token_ids);
    for (size_t at = 0; at < token_ids.size(); ++at) {
      if (frequencies.of_ids[at] > 0) by_frequency.emplace_back(frequencies.of_ids[at], token_ids[at]);
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

  // Of the connection. Fair: an adder that asks for it again at once stands behind a search that waits.
  mutable FairSharedMutex mutex_;
  mutable Database database_;
  const TokenStatistics& statistics_;
};

}  // namespace

Result<std::unique_ptr<LexicalIndex>> LexicalIndex::Create(const TokenStatistics& statistics) {
  EVERLONG_ASSIGN_OR_RETURN(Database database,
                            Database::Open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "words of pages"));
  // Contentless: only the index is kept. bm25() needs detail=full; with less it is 0 on a contentless table. One
  // transaction is left open for good: nothing here outlives the process, and a commit a page would cost a segment a
  // page.
  constexpr const char* kSchema =
      "CREATE VIRTUAL TABLE pages USING fts5(ids, content='', tokenize='ascii');"
      "INSERT INTO pages(pages, rank) VALUES ('hashsize', 131072);"
      "INSERT INTO pages(pages, rank) VALUES ('automerge', 0);"
      "INSERT INTO pages(pages, rank) VALUES ('crisismerge', 1000);"
      "BEGIN";
  EVERLONG_RETURN_IF_ERROR(database.Execute(kSchema));
  return std::unique_ptr<LexicalIndex>(std::make_unique<Fts5Index>(std::move(database), statistics));
}

}  // namespace everlong::index
