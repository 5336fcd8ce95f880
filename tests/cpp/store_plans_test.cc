// What a call costs must depend on what it is about: SQLite's own plan of every statement finds its rows by a key.
#include <sqlite3.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store_fixture.h"
#include "store_sql.h"

namespace everlong::store {
namespace {

std::set<std::string> g_statements;  // that ran

int Note(unsigned /*event*/, void* /*context*/, void* /*statement*/, void* text) {
  g_statements.emplace(static_cast<const char*>(text));
  return 0;
}

int TraceConnection(sqlite3* connection, char** /*error*/, const void* /*api*/) {
  return sqlite3_trace_v2(connection, SQLITE_TRACE_STMT, Note, nullptr);
}

class StatementTrace {
 public:
  StatementTrace() { sqlite3_auto_extension(reinterpret_cast<void (*)()>(TraceConnection)); }
  ~StatementTrace() { sqlite3_cancel_auto_extension(reinterpret_cast<void (*)()>(TraceConnection)); }
  StatementTrace(const StatementTrace&) = delete;
  StatementTrace& operator=(const StatementTrace&) = delete;
  // Return the statements that `call` ran, on connections that were opened since.
  static std::set<std::string> Of(const std::function<void()>& call) {
    g_statements.clear();
    call();
    return std::exchange(g_statements, {});
  }
};

class StorePlans : public StoreFolderTest {
 protected:
  // Return the lines of the statements' plans that go through all rows of a table, each with its statement.
  [[nodiscard]] std::vector<std::string> Scans(const std::set<std::string>& statements) const {
    PlainSql catalog(folder_ / "catalog.sqlite");
    std::vector<std::string> scans;
    for (const std::string& sql : statements) {
      const bool reads = std::ranges::any_of(std::vector<std::string>{"SELECT", "INSERT", "UPDATE", "DELETE"},
                                             [&sql](const std::string& word) { return sql.starts_with(word); });
      if (!reads) continue;
      catalog.Rows(("EXPLAIN QUERY PLAN " + sql).c_str(), [&](PlainSql::Row row) {
        const std::string plan = row.Bytes(3);
        // SQLite's own tables have a row for each of ours, or two.
        const bool is_small = plan.starts_with("SCAN sqlite_") || plan == "SCAN CONSTANT ROW";
        // SQLite says SEARCH of a highest number, too. Only that of the ids is at the end of a key.
        const bool is_highest =
            plan.starts_with("SEARCH") && plan.find(" (") == plan.npos && sql.find("max(id)") == sql.npos;
        if (is_highest || (plan.starts_with("SCAN") && !is_small)) scans.push_back(plan + ": " + sql);
      });
    }
    return scans;
  }
};

TEST_F(StorePlans, ACallAboutSomeBlocksReadsNoOtherRows) {
  const StatementTrace trace;
  const TestBlock block(1, 40);
  const TensorView tensor{"late", "U8", {20}, std::span(block.payload).first(20)};
  const auto each = [&](MemoryStore& store) {
    std::vector<int64_t> ids;
    for (int i = 0; i < 4; ++i) ids.push_back(AppendAll(store, block).value());
    EXPECT_OK(store.PutTensors(ids[0], {&tensor, 1}));
    EXPECT_OK(store.DropTensors(ids[0], std::vector<std::string>{"late"}));
    EXPECT_OK(store.ReplacePages(ids[1], block.payload, block.page_bytes, block.tags));
    EXPECT_OK(store.AddTags(ids[1], std::vector<std::string>{"third"}));
    EXPECT_OK(store.SetTags(ids[1], block.tags));
    GraphChange change;
    change.put_nodes = {BlockNode(ids[3])};
    change.put_edges = {{ids[3], ids[1], EdgeKind::kNext, 1, 2}};
    EXPECT_OK(store.ChangeGraph(change));
    change = {};
    change.drop_edges = {{ids[3], ids[1], EdgeKind::kNext}};
    EXPECT_OK(store.ChangeGraph(change));
    EXPECT_OK(store.Stats().status());  // which was counted before
    ExpectStored(store, block, ids[0]);
    ExpectExtras(store, block, ids[0]);
    EXPECT_OK(store.PageBytes(ids[0]).status());
    EXPECT_EQ(store.Blocks({.behind = ids[1]})->size(), 2U);
    EXPECT_OK(store.Nodes(NodeKind::kTopic).status());
    EXPECT_OK(store.NodeIds(NodeKind::kTopic).status());
    EXPECT_OK(store.Forgettings().status());
    EXPECT_OK(store.Forget(std::vector<int64_t>{ids[2]}));
  };
  std::set<std::string> statements;
  {
    const auto store = Create();
    EXPECT_OK(store->Stats().status());
    statements.merge(StatementTrace::Of([&] { each(*store); }));
    const auto reader = Open(true);
    statements.merge(StatementTrace::Of([&] {
      ExpectStored(*reader, block, 1);
      ExpectExtras(*reader, block, 1);
    }));
  }
  const auto in_ram = MemoryStore::Create(std::nullopt, TestManifest()).value();
  EXPECT_OK(in_ram->Stats().status());
  statements.merge(StatementTrace::Of([&] { each(*in_ram); }));
  EXPECT_GT(statements.size(), 30U);
  for (const std::string& scan : Scans(statements)) ADD_FAILURE() << scan;
}

// A row that does not match its checksum is damage for whoever reads it: a page of a list reads its own rows alone.
TEST_F(StorePlans, APageOfAListReadsNoRowBehindItAndNoneBefore) {
  const TestBlock block(1, 40);
  auto store = Create();
  for (int i = 0; i < 9; ++i) ASSERT_OK(AppendAll(*store, block).status());
  store.reset();
  PlainSql(folder_ / "catalog.sqlite").Run("UPDATE blocks SET sink_tokens = sink_tokens + 1 WHERE id IN (2, 7)");
  for (const bool read_only : {false, true}) {
    store = Open(read_only);
    const auto page = [&](int64_t behind, size_t most) {
      std::vector<int64_t> ids;
      const Status visited = store->VisitBlocks({.behind = behind}, [&](BlockInfo&& info) {
        EXPECT_EQ(info.tags, block.tags);
        ids.push_back(info.id);
        return ids.size() < most;
      });
      return std::pair(visited.code(), ids);
    };
    EXPECT_EQ(page(2, 4), std::pair(StatusCode::kOk, std::vector<int64_t>{3, 4, 5, 6}));
    EXPECT_EQ(page(2, 5), std::pair(StatusCode::kCorrupt, std::vector<int64_t>{3, 4, 5, 6}));
    EXPECT_EQ(page(7, 5), std::pair(StatusCode::kOk, std::vector<int64_t>{8, 9}));
    EXPECT_EQ(page(9, 5), std::pair(StatusCode::kOk, std::vector<int64_t>{}));
    EXPECT_EQ(page(0, 5).first, StatusCode::kCorrupt);
    store.reset();
  }
}

// The calls that are about all of a memory, and no others, may read all of it.
TEST_F(StorePlans, TheCallsThatReadAllRowsAreKnown) {
  const StatementTrace trace;
  const TestBlock block(1, 40);
  auto store = Create();
  for (int i = 0; i < 3; ++i) ASSERT_OK(AppendAll(*store, block).status());
  const auto scans = [&](const std::function<void()>& call) { return !Scans(StatementTrace::Of(call)).empty(); };
  EXPECT_TRUE(scans([&] { EXPECT_OK(store->Blocks({.source = "a book", .tag = "first"}).status()); }));
  EXPECT_TRUE(scans([&] { EXPECT_OK(store->ReadGraph().status()); }));
  EXPECT_TRUE(scans([&] { EXPECT_OK(store->Stats().status()); }));
  EXPECT_FALSE(scans([&] { EXPECT_OK(store->Stats().status()); })) << "it counts once";
  EXPECT_TRUE(scans([&] { EXPECT_OK(store->Compact().status()); }));
  EXPECT_TRUE(scans([&] { EXPECT_OK(store->Verify(true).status()); }));
  EXPECT_TRUE(scans([&] { EXPECT_OK(store->Export(root_ / "exported")); }));
  EXPECT_FALSE(scans([&] { EXPECT_OK(store->Fork(root_ / "fork", {})); })) << "SQLite copies the catalog";
  store.reset();
  EXPECT_TRUE(scans([&] { EXPECT_NE(Open(), nullptr); }));
  EXPECT_FALSE(scans([&] { EXPECT_NE(Open(true), nullptr); }));
}

}  // namespace
}  // namespace everlong::store
