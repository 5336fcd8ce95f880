// Memories that an older release wrote: read as they are, migrated by the first writer, exported and forked. (What a
// fault in the midst of a migration does: store_faults_test.cc.)
#include <map>

#include "store_old_memories.h"
#include "store_sql.h"

namespace everlong::store {
namespace {

class StoreMigration : public StoreFolderTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { UnpackOld(GetParam(), folder_); }

  [[nodiscard]] std::string name() const { return GetParam(); }
  [[nodiscard]] int64_t CatalogFormat() const {
    int64_t format = 0;
    PlainSql(folder_ / "catalog.sqlite").Rows("PRAGMA user_version", [&](PlainSql::Row row) {
      format = row.Integer(0);
    });
    return format;
  }
  // Every file but SQLite's index of the log.
  [[nodiscard]] std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      const std::string path = entry.path().string();
      if (entry.is_regular_file() && !path.ends_with("-shm")) files[path] = ReadFile(path);
    }
    std::erase_if(files, [](const auto& file) { return file.first.ends_with("-wal") && file.second.empty(); });
    return files;
  }
  static void ExpectNoGraph(const MemoryStore& store) {
    EXPECT_EQ(store.ReadGraph().value(), Graph());
    EXPECT_EQ(store.Node(1).status().code(), StatusCode::kNotFound);
    EXPECT_TRUE(store.Nodes(NodeKind::kBlock)->empty());
    EXPECT_TRUE(store.EdgesOf(1)->empty());
  }
};

TEST_P(StoreMigration, AWriterMigratesAndAnswersTheSame) {
  ASSERT_EQ(CatalogFormat(), 1);
  for (int opening = 0; opening < 2; ++opening) {
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    ExpectAnswers(*store, name());
    ExpectNoGraph(*store);
    ExpectUndamaged(*store);
    EXPECT_EQ(store->manifest().format_version, kFormatVersion);
  }
  EXPECT_EQ(CatalogFormat(), kCatalogSchema);
  EXPECT_EQ(ReadManifest(folder_)->format_version, kFormatVersion);
  // And takes what is new.
  const auto store = Open();
  const std::vector<std::byte> bytes(24, std::byte{3});
  const TensorView tensors[] = {{"now", "F64", {3}, bytes}, {"text/ids", "U8", {24}, bytes}};
  ASSERT_OK(store->PutTensors(1, tensors));
  GraphChange change;
  change.put_nodes = {BlockNode(1), BlockNode(4)};
  change.put_edges = {{1, 4, EdgeKind::kNext, 1, 2}};
  ASSERT_OK(store->ChangeGraph(change));
  EXPECT_EQ(store->ReadTensor(1, "now")->bytes, bytes);
  EXPECT_EQ(store->ReadTensor(1, "text/ids")->bytes, bytes);
  EXPECT_EQ(store->Tensors(1)->size(), name() == "kv" ? 5U : 2U);
  EXPECT_EQ(store->EdgesOf(4)->size(), 1U);
  const TestBlock block(1, 12);
  BlockDraft draft = block.Draft();
  draft.stream = 5;
  draft.payload = {};
  draft.page_bytes = {};
  draft.role = Role::kSaid;
  EXPECT_EQ(AppendTo(*store, draft).value(), 10);
  EXPECT_EQ(store->Block(10)->role, Role::kSaid);
  BlockFilter said;
  said.roles = Roles{Role::kSaid};
  ASSERT_EQ(store->Blocks(said)->size(), 1U);
  EXPECT_EQ(store->Blocks(said)->front().id, 10);
  ASSERT_OK(store->Compact().status());
  ExpectUndamaged(*store);
}

TEST_P(StoreMigration, AReaderLeavesItAsItIs) {
  const std::map<std::string, std::string> before = Files();
  {
    const auto store = Open(true);
    ASSERT_NE(store, nullptr);
    ExpectAnswers(*store, name());
    ExpectNoGraph(*store);
    ExpectUndamaged(*store);
    EXPECT_EQ(store->manifest().format_version, 1);
    EXPECT_EQ(store->ChangeGraph({}).code(), StatusCode::kReadOnly);
    EXPECT_EQ(store->PutTensors(1, {}).code(), StatusCode::kReadOnly);
    const Result<StoreStats> stats = store->Stats();
    ASSERT_OK(stats.status());
    EXPECT_EQ(stats->graph_nodes, 0);
    // What it exports and forks is of this format.
    ASSERT_OK(store->Export(root_ / "export"));
    ASSERT_OK(store->Fork(root_ / "fork", {}));
  }
  EXPECT_TRUE(Files() == before);
  for (const bool read_only : {true, false}) {
    const auto fork = MemoryStore::Open(root_ / "fork", read_only);
    ASSERT_OK(fork.status());
    ExpectAnswers(**fork, name());
    ExpectUndamaged(**fork);
    EXPECT_EQ((*fork)->manifest().format_version, kFormatVersion);
  }
  const auto imported = MemoryStore::Import(root_ / "export", std::nullopt);
  ASSERT_OK(imported.status());
  ExpectAnswers(**imported, name());
  EXPECT_EQ((*imported)->manifest().format_version, kFormatVersion);
}

TEST_P(StoreMigration, AReaderSeesTheMigrationBesideIt) {
  const auto reader = Open(true);
  ASSERT_NE(reader, nullptr);
  ExpectAnswers(*reader, name());
  {
    const auto writer = Open();
    ASSERT_NE(writer, nullptr);
    ExpectAnswers(*reader, name());
    ExpectNoGraph(*reader);
    GraphChange change;
    change.put_nodes = {BlockNode(4)};
    ASSERT_OK(writer->ChangeGraph(change));
    EXPECT_EQ(reader->ReadGraph()->nodes.size(), 1U);
  }
  ExpectAnswers(*reader, name());
  EXPECT_EQ(reader->manifest().format_version, kFormatVersion);
  ExpectUndamaged(*reader);
}

TEST_P(StoreMigration, WhatItExportedComesBack) {
  const std::filesystem::path file = root_ / "export";
  Shell("gzip -dc '" + OldFile(name() + ".export.gz").string() + "' > '" + file.string() + "'");
  for (const auto& folder : {std::optional<std::filesystem::path>(), std::optional(root_ / "imported")}) {
    const auto store = MemoryStore::Import(file, folder);
    ASSERT_OK(store.status());
    ExpectAnswers(**store, name());
    ExpectNoGraph(**store);
    ExpectUndamaged(**store);
  }
  EXPECT_EQ(ReadManifest(root_ / "imported")->format_version, kFormatVersion);
}

// The catalog's commit is the first thing that lasts of a migration, and the manifest the last.
TEST_P(StoreMigration, IsFinishedWhereItWasCutOff) {
  const std::string old_manifest = ReadFile(folder_ / "manifest.json");
  Open().reset();
  const std::string new_manifest = ReadFile(folder_ / "manifest.json");
  WriteFile(folder_ / "manifest.json", old_manifest);
  ExpectAnswers(*Open(true), name());
  EXPECT_EQ(ReadFile(folder_ / "manifest.json"), old_manifest);
  ExpectAnswers(*Open(), name());
  EXPECT_EQ(ReadFile(folder_ / "manifest.json"), new_manifest);
  // The other way round no migration leaves it.
  std::filesystem::remove_all(folder_);
  UnpackOld(GetParam(), folder_);
  WriteFile(folder_ / "manifest.json", new_manifest);
  for (const bool read_only : {true, false}) {
    EXPECT_EQ(MemoryStore::Open(folder_, read_only).status().code(), StatusCode::kCorrupt);
  }
}

INSTANTIATE_TEST_SUITE_P(Memories, StoreMigration, testing::ValuesIn(kOldMemories));

TEST_F(StoreFolderTest, DamagedTensorsKeepNobodyFromMigrating) {
  UnpackOld("kv", folder_);
  const std::filesystem::path segment = folder_ / "segments" / "000001.kvseg";
  const std::vector<int32_t> ids = Counting(100, 18);  // of block 1's text
  const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), 4 * ids.size());
  FlipBit(segment, 8 * ReadFile(segment).find(bytes));
  const auto store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->Tensors(1).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(store->Tensors(4)->size(), 1U);
  EXPECT_FALSE(store->Verify(false)->damage.empty());
  const Result<VerifyReport> repair = store->Verify(true);
  ASSERT_OK(repair.status());
  EXPECT_TRUE(repair->dropped.empty());
  EXPECT_TRUE(store->Verify(false)->damage.empty());
  EXPECT_EQ(store->Blocks()->size(), 7U);
  EXPECT_EQ(store->ReadTensor(1, "text/ids").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace everlong::store
