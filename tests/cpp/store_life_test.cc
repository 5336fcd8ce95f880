// The life of a memory: choosing blocks, forgetting and compacting, scrubbing and repairing, branching.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base_file_limit.h"
#include "store_fixture.h"
#include "store_sql.h"

namespace everlong::store {
namespace {

class StoreLife : public StoreFolderTest {
 protected:
  // Blocks 1 .. count of `tokens` each, appended to `store`.
  std::vector<TestBlock> Fill(MemoryStore& store, int count, int64_t tokens = 40) {
    std::vector<TestBlock> blocks;
    for (int i = 0; i < count; ++i) {
      blocks.emplace_back(static_cast<uint64_t>(i + 1), tokens);
      blocks.back().source = "source of block " + std::to_string(i + 1) + " alone";
      EXPECT_OK(AppendTo(store, blocks.back().Draft()).status());
    }
    return blocks;
  }

  // Whether any file of the folder holds these bytes.
  [[nodiscard]] bool OnDisk(std::string_view bytes) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file() && ReadFile(entry.path()).find(bytes) != std::string::npos) return true;
    }
    return false;
  }

  static std::string_view Bytes(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  [[nodiscard]] std::filesystem::path segment(int number = 1) const {
    return folder_ / "segments" / ("00000" + std::to_string(number) + ".kvseg");
  }
};

TEST_F(StoreLife, ChoosesBlocks) {
  const auto store = MemoryStore::Create(std::nullopt, TestManifest()).value();
  for (int i = 0; i < 6; ++i) {
    TestBlock block(static_cast<uint64_t>(i), 10);
    block.source = i % 2 == 0 ? "even" : "odd";
    block.tags = i < 3 ? std::vector<std::string>{"early", "x"} : std::vector<std::string>{};
    block.created_at = 100 + i;
    ASSERT_OK(AppendTo(*store, block.Draft()).status());
  }
  const auto ids = [&store](const BlockFilter& filter) {
    std::vector<int64_t> found;
    const std::vector<BlockInfo> infos = store->Blocks(filter).value();
    for (const BlockInfo& info : infos) found.push_back(info.id);
    return found;
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ids({}), (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(ids({.source = "even", .tag = {}, .since = {}, .before = {}}), (Ids{1, 3, 5}));
  EXPECT_EQ(ids({.source = {}, .tag = "early", .since = {}, .before = {}}), (Ids{1, 2, 3}));
  EXPECT_EQ(ids({.source = {}, .tag = {}, .since = 102, .before = 104}), (Ids{3, 4}));
  EXPECT_EQ(ids({.source = "odd", .tag = "x", .since = {}, .before = 200}), (Ids{2}));
  EXPECT_EQ(ids({.source = "", .tag = {}, .since = {}, .before = {}}), Ids{});
}

TEST_F(StoreLife, CompactRemovesEveryByteOfWhatWasForgotten) {
  const auto store = Create({.segment_bytes = 60 * 1024});  // two blocks each
  const std::vector<TestBlock> blocks = Fill(*store, 7);
  const auto reader = Open(true);
  for (const int64_t id : {2, 3, 4}) {
    std::vector<std::byte> out;
    ASSERT_OK(ReadBlock(*reader, blocks[static_cast<size_t>(id - 1)], id, out));
  }
  const std::vector<std::byte> numbers(77, std::byte{9});
  const TensorView tensor{"numbers", "U8", {77}, numbers};
  ASSERT_OK(store->PutTensors(3, {&tensor, 1}));
  ASSERT_TRUE(OnDisk(Bytes(numbers)));
  // Half of the first segment, all of the second, the active one's last.
  const std::vector<int64_t> forgotten = {2, 3, 4, 7};
  ASSERT_OK(store->Forget(forgotten));
  EXPECT_GT(store->Stats()->dead_bytes, 4 * 24 * 1024);  // a block's three records
  ASSERT_TRUE(OnDisk(blocks[1].source));
  ASSERT_TRUE(OnDisk(Bytes(blocks[1].Parts(1, 2, 1))));

  const Result<int64_t> freed = store->Compact();
  ASSERT_OK(freed.status());
  EXPECT_GE(*freed, 4 * 24 * 1024);
  for (const int64_t id : forgotten) {
    const TestBlock& block = blocks[static_cast<size_t>(id - 1)];
    EXPECT_FALSE(OnDisk(block.source)) << id;
    EXPECT_FALSE(OnDisk({reinterpret_cast<const char*>(block.token_ids.data()), 4 * block.token_ids.size()})) << id;
    for (int32_t page = 0; page < block.pages(); ++page) {
      for (int32_t part = 0; part < kLayers; ++part) EXPECT_FALSE(OnDisk(Bytes(block.Parts(page, part, 1)))) << id;
    }
    for (const MemoryStore* opened : {store.get(), reader.get()}) {
      std::vector<std::byte> out;
      EXPECT_EQ(ReadBlock(*opened, block, id, out).code(), StatusCode::kNotFound);
      EXPECT_EQ(opened->Block(id).status().code(), StatusCode::kNotFound);
    }
  }
  EXPECT_FALSE(OnDisk(Bytes(numbers)));
  EXPECT_FALSE(OnDisk("numbers"));
  EXPECT_EQ(store->Stats()->dead_bytes, 0);
  EXPECT_FALSE(std::filesystem::exists(segment(2)));
  for (const int64_t id : {1, 5, 6}) {
    ExpectStored(*store, blocks[static_cast<size_t>(id - 1)], id);
    ExpectStored(*reader, blocks[static_cast<size_t>(id - 1)], id);
  }
  // What is appended later takes no forgotten block's id, in this process and in the next.
  EXPECT_EQ(AppendTo(*store, blocks[0].Draft()).value(), 8);
  ExpectStored(*reader, blocks[0], 8);
  EXPECT_EQ(store->Compact().value(), 0);
  EXPECT_TRUE(store->Verify(false)->damage.empty());
}

// Files hold a forgotten block's bytes also where a crash left them under a name that means nothing.
TEST_F(StoreLife, CompactAndOpenTakeWhatACrashLeft) {
  const std::vector<std::filesystem::path> left = {folder_ / "segments" / "000001.kvseg.tmp",
                                                   folder_ / "segments" / "000900.kvseg.tmp",
                                                   folder_ / "files" / "frame.tmp"};
  const std::vector<std::filesystem::path> foreign = {folder_ / "segments" / "mine.tmp", folder_ / "files" / "My.tmp"};
  const auto leave = [&] {
    for (const auto& files : {left, foreign}) {
      for (const std::filesystem::path& file : files) WriteFile(file, "left over");
    }
  };
  const auto expect_gone = [&] {
    for (const std::filesystem::path& file : left) EXPECT_FALSE(std::filesystem::exists(file)) << file;
    for (const std::filesystem::path& file : foreign) EXPECT_TRUE(std::filesystem::exists(file)) << file;
  };
  {
    const auto store = Create();
    Fill(*store, 2);
    ASSERT_OK(store->PutFile("frame", std::vector<std::byte>(10)));
    leave();
    ASSERT_OK(store->Compact().status());
    expect_gone();
    leave();
  }
  const auto reader = Open(true);
  EXPECT_TRUE(std::filesystem::exists(left[1]));
  const auto store = Open();
  expect_gone();
  EXPECT_EQ(store->File("frame")->size(), 10U);
}

TEST_F(StoreLife, AReplacementThatFailsLeavesNothing) {
  const auto store = Create();
  const std::vector<TestBlock> blocks = Fill(*store, 20);
  ASSERT_OK(store->PutFile("frame", std::vector<std::byte>(10)));
  ASSERT_OK(store->Fork(root_ / "branch.everlong", {}));
  ASSERT_OK(store->Forget(std::vector<int64_t>{2}));
  ASSERT_OK(store->Compact().status());  // a copy takes the place of the segment that the fork reads too
  ASSERT_OK(store->Fork(root_ / "another.everlong", {}));
  ASSERT_OK(store->Forget(std::vector<int64_t>{3}));
  {
    const FileLimit limit(300'000);
    EXPECT_EQ(store->PutFile("frame", std::vector<std::byte>(400'000)).code(), StatusCode::kIoError);
    EXPECT_EQ(store->Compact().status().code(), StatusCode::kIoError);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
  EXPECT_EQ(store->File("frame")->size(), 10U);
  ASSERT_OK(store->Compact().status());
  EXPECT_FALSE(OnDisk(Bytes(blocks[2].Parts(0, 0, 1))));
  ExpectStored(*store, blocks[3], 4);
}

// The file system takes no more: what is forgotten gives its room back all the same.
TEST_F(StoreLife, CompactFreesTheBytesThoughTheCatalogCannotBeRewritten) {
  const auto store = Create();
  std::vector<TestBlock> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.emplace_back(static_cast<uint64_t>(i + 1), 40);
    blocks.back().source = std::string(100'000, 's');
    ASSERT_OK(AppendTo(*store, blocks.back().Draft()).status());
  }
  ASSERT_OK(store->Compact().status());  // so that the catalog's log is empty
  {
    const FileLimit limit(400'000);
    ASSERT_OK(store->Forget(std::vector<int64_t>{2}));
    EXPECT_EQ(store->Compact().status().code(), StatusCode::kIoError);
  }
  EXPECT_EQ(store->Stats()->dead_bytes, 0);
  EXPECT_FALSE(OnDisk(Bytes(blocks[1].Parts(0, 0, 1))));
  ExpectStored(*store, blocks[2], 3);
  ASSERT_OK(store->Compact().status());
  EXPECT_TRUE(store->Verify(false)->damage.empty());
}

TEST_F(StoreLife, CompactedIdsAreNotReusedAfterReopening) {
  {
    const auto store = Create();
    Fill(*store, 3);
    ASSERT_OK(store->Forget(std::vector<int64_t>{1, 2, 3}));
    ASSERT_OK(store->Compact().status());
    EXPECT_TRUE(store->Blocks()->empty());
  }
  const auto store = Open();
  EXPECT_EQ(AppendTo(*store, TestBlock(9, 20).Draft()).value(), 4);
  ExpectStored(*store, TestBlock(9, 20), 4);
}

TEST_F(StoreLife, ReadersGoOnWhileAWriterForgetsAndCompacts) {
  const auto store = Create({.segment_bytes = 64 * 1024});
  std::vector<TestBlock> blocks = Fill(*store, 12);
  std::atomic<bool> done = false;
  const auto read = [&](bool of_its_own) {
    const auto own = of_its_own ? Open(true, {.host_bytes = 0}) : nullptr;
    const MemoryStore& from = own ? *own : *store;
    for (int rounds = 0; rounds < 3 || !done; ++rounds) {
      for (int64_t id = 1; id <= 12; ++id) {
        std::vector<std::byte> out;
        const TestBlock& block = blocks[static_cast<size_t>(id - 1)];
        const Status status = ReadBlock(from, block, id, out);
        if (status.ok()) {
          ASSERT_TRUE(out == block.payload);
        } else {
          ASSERT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
          ASSERT_NE(id % 3, 1) << "block " << id << " was never forgotten";
        }
      }
    }
  };
  std::thread same(read, false);
  std::thread other(read, true);
  for (int64_t id = 1; id <= 12; ++id) {
    if (id % 3 == 1) continue;
    EXPECT_OK(store->Forget(std::vector<int64_t>{id}));
    EXPECT_OK(store->Compact().status());
    EXPECT_OK(AppendTo(*store, TestBlock(50, 30).Draft()).status());  // new files, perhaps with old numbers
  }
  done = true;
  same.join();
  other.join();
}

TEST_F(StoreLife, AKilledReaderHarmsNobody) {
  const auto store = Create({.segment_bytes = 64 * 1024});
  const std::vector<TestBlock> blocks = Fill(*store, 6);
  for (int round = 0; round < 5; ++round) {
    int reading[2];
    ASSERT_EQ(::pipe(reading), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto reader = Open(true);
      for (char byte = 0;; ++byte) {
        std::vector<std::byte> out;
        if (!ReadBlock(*reader, blocks[0], 1, out).ok() || !reader->Blocks().ok()) ::_exit(1);
        if (::write(reading[1], &byte, 1) != 1) ::_exit(1);
      }
    }
    ::close(reading[1]);  // so that a reader that ends by itself is seen, and not waited for
    char byte = 0;
    for (int i = 0; i < 3 + round; ++i) ASSERT_EQ(::read(reading[0], &byte, 1), 1);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(reading[0]);
    ASSERT_OK(store->Forget(std::vector<int64_t>{round + 2}));
    ASSERT_OK(store->Compact().status());
    ASSERT_OK(AppendTo(*store, blocks[0].Draft()).status());
    EXPECT_TRUE(store->Verify(false)->damage.empty());
  }
  ExpectStored(*store, blocks[0], 1);
}

TEST_F(StoreLife, VerifyFindsNothingInAWholeMemory) {
  const auto store = Create();
  const std::vector<TestBlock> blocks = Fill(*store, 4);
  int64_t bytes = 0;
  for (const TestBlock& block : blocks) bytes += std::ssize(block.payload);
  for (const bool repair : {false, true}) {
    const Result<VerifyReport> report = store->Verify(repair);
    ASSERT_OK(report.status());
    EXPECT_TRUE(report->damage.empty());
    EXPECT_TRUE(report->dropped.empty());
    EXPECT_EQ(report->blocks, 4);
    EXPECT_EQ(report->records, 12);
    EXPECT_EQ(report->bytes, bytes);
  }
  EXPECT_TRUE(Open(true)->Verify(false)->damage.empty());
  EXPECT_EQ(Open(true)->Verify(true).status().code(), StatusCode::kReadOnly);
  EXPECT_TRUE(MemoryStore::Create(std::nullopt, TestManifest()).value()->Verify(true)->damage.empty());
}

TEST_F(StoreLife, RepairKeepsWhatIsWhole) {
  std::vector<TestBlock> blocks;
  const std::vector<std::byte> vector(64, std::byte{7});
  {
    const auto store = Create();
    blocks = Fill(*store, 5);
    const TensorView tensor{"v", "U8", {64}, vector};
    ASSERT_OK(store->PutTensors(4, {&tensor, 1}));
    ASSERT_OK(store->PutTensors(5, {&tensor, 1}));
  }
  const std::string bytes = ReadFile(segment());
  const auto flip = [&](std::string_view what, size_t within) {
    const size_t at = bytes.find(what);
    ASSERT_NE(at, std::string::npos);
    FlipBit(segment(), 8 * (at + within));
  };
  flip(Bytes(blocks[1].Parts(2, 3, 1)), 5);                // block 2: a part of its last page
  flip(Bytes(blocks[3].Parts(0, 0, 1)).substr(0, 40), 1);  // block 4: its first part
  FlipBit(segment(), 8 * bytes.rfind(Bytes(vector)));      // block 5's vectors: it can do without
  const auto store = Open();
  Result<VerifyReport> report = store->Verify(false);
  ASSERT_OK(report.status());
  ASSERT_EQ(report->damage.size(), 3U);
  std::vector<int64_t> damaged;
  for (const Damage& damage : report->damage) {
    damaged.push_back(damage.block);
    EXPECT_NE(damage.what.find(segment().string()), std::string::npos) << damage.what;
  }
  EXPECT_EQ(damaged, (std::vector<int64_t>{2, 4, 5}));
  EXPECT_TRUE(report->dropped.empty());
  EXPECT_EQ(store->Blocks()->size(), 5U);

  report = store->Verify(true);
  ASSERT_OK(report.status());
  EXPECT_EQ(report->dropped, (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(store->Verify(false)->damage.empty());
  for (const int64_t id : {1, 3, 5}) ExpectStored(*store, blocks[static_cast<size_t>(id - 1)], id);
  EXPECT_TRUE(store->Tensors(5)->empty());
  EXPECT_EQ(store->ReadTensor(5, "v").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(AppendTo(*store, blocks[0].Draft()).value(), 6);
}

TEST_F(StoreLife, RepairWritesALostManifestAnew) {
  const auto store = Create();
  Fill(*store, 1);
  FlipBit(folder_ / "manifest.json", 900);
  const Result<VerifyReport> report = store->Verify(true);
  ASSERT_OK(report.status());
  ASSERT_EQ(report->damage.size(), 1U);
  EXPECT_EQ(report->damage[0].block, 0);
  EXPECT_TRUE(report->dropped.empty());
  EXPECT_TRUE(store->Verify(false)->damage.empty());
}

TEST_F(StoreLife, AForkIsAMemoryOfItsOwn) {
  const std::filesystem::path branch = root_ / "branch.everlong";
  std::vector<TestBlock> blocks;
  const auto store = Create({.segment_bytes = 64 * 1024});
  blocks = Fill(*store, 5);
  ASSERT_OK(store->SetAttribute("profile", "kept"));
  ASSERT_OK(store->Forget(std::vector<int64_t>{2, 5}));
  ASSERT_OK(store->Fork(branch, {}));
  {
    auto opened = MemoryStore::Open(branch, false);
    ASSERT_OK(opened.status());
    MemoryStore& fork = **opened;
    EXPECT_EQ(fork.manifest().attributes.at("profile"), "kept");
    EXPECT_EQ(fork.Blocks()->size(), 3U);
    for (const int64_t id : {1, 3, 4}) ExpectStored(fork, blocks[static_cast<size_t>(id - 1)], id);
    EXPECT_TRUE(fork.Verify(false)->damage.empty());
    // Both go on, each for itself: the same id, other bytes.
    ASSERT_EQ(AppendTo(fork, TestBlock(70, 25).Draft()).value(), 6);
    ASSERT_EQ(AppendTo(*store, TestBlock(80, 35).Draft()).value(), 6);
    ExpectStored(fork, TestBlock(70, 25), 6);
    ExpectStored(*store, TestBlock(80, 35), 6);
    // One forgets for good what the other keeps.
    ASSERT_OK(store->Forget(std::vector<int64_t>{1}));
    ASSERT_OK(store->Compact().status());
    EXPECT_FALSE(OnDisk(Bytes(blocks[0].Parts(0, 0, 1))));
    ExpectStored(fork, blocks[0], 1);
    ASSERT_OK(fork.Forget(std::vector<int64_t>{3}));
    ASSERT_OK(fork.Compact().status());
    ExpectStored(*store, blocks[2], 3);
    EXPECT_TRUE(fork.Verify(false)->damage.empty());
    EXPECT_TRUE(store->Verify(false)->damage.empty());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(branch)) {
    struct stat status = {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, entry.is_directory() ? 0700U : 0600U) << entry.path();
  }
}

TEST_F(StoreLife, OwnFilesAreReplacedWholeAndForked) {
  const std::vector<std::byte> first(1000, std::byte{1});
  const std::vector<std::byte> second(10, std::byte{2});
  const auto ram = MemoryStore::Create(std::nullopt, TestManifest()).value();
  const auto folder = Create();
  for (MemoryStore* store : {ram.get(), folder.get()}) {
    EXPECT_EQ(store->File("frame").status().code(), StatusCode::kNotFound);
    ASSERT_OK(store->PutFile("frame", second));
    ASSERT_OK(store->PutFile("frame", first));
    ASSERT_OK(store->PutFile("empty", {}));
    EXPECT_EQ(store->File("frame").value(), first);
    for (const char* name : {"", "../x", "a/b", ".", "..", ".x", "x.tmp", "A", "a\n"}) {
      EXPECT_EQ(store->PutFile(name, first).code(), StatusCode::kInvalidArgument) << name;
      EXPECT_EQ(store->File(name).status().code(), StatusCode::kInvalidArgument) << name;
    }
    EXPECT_EQ(store->PutFile(std::string(65, 'a'), first).code(), StatusCode::kInvalidArgument);
    const std::filesystem::path branch = root_ / (store == ram.get() ? "of-ram" : "of-folder");
    ASSERT_OK(store->Fork(branch, {}));
    ASSERT_OK(store->PutFile("frame", second));
    const auto fork = MemoryStore::Open(branch, false);
    ASSERT_OK(fork.status());
    EXPECT_EQ((*fork)->File("frame").value(), first);
    EXPECT_TRUE((*fork)->File("empty").value().empty());
    ASSERT_OK((*fork)->PutFile("frame", {}));
    EXPECT_EQ(store->File("frame").value(), second);
  }
  WriteFile(folder_ / "files" / "Other", "not ours");
  ASSERT_OK(folder->Fork(root_ / "again", {}));
  EXPECT_FALSE(std::filesystem::exists(root_ / "again" / "files" / "Other"));
  EXPECT_EQ(Open(true)->PutFile("frame", first).code(), StatusCode::kReadOnly);
}

TEST_F(StoreLife, AReopenedOriginalNeverWritesIntoAForksFile) {
  const std::filesystem::path branch = root_ / "branch.everlong";
  {
    const auto store = Create();
    Fill(*store, 2);
    ASSERT_OK(store->Fork(branch, {}));
  }
  const std::string before = ReadFile(branch / "segments" / "000001.kvseg");
  const auto store = Open();
  ASSERT_EQ(AppendTo(*store, TestBlock(9, 40).Draft()).value(), 3);
  EXPECT_EQ(ReadFile(branch / "segments" / "000001.kvseg"), before);
  const auto fork = MemoryStore::Open(branch, false);
  ASSERT_OK(fork.status());
  ASSERT_EQ(AppendTo(**fork, TestBlock(8, 40).Draft()).value(), 3);
  ExpectStored(*store, TestBlock(9, 40), 3);
  ExpectStored(**fork, TestBlock(8, 40), 3);
}

// Return the rows of a catalog's tables, as bytes.
std::map<std::string, std::vector<std::string>> RowsOf(const std::filesystem::path& catalog) {
  PlainSql sql(catalog);
  std::map<std::string, std::vector<std::string>> rows;
  sql.Rows("SELECT name FROM sqlite_master WHERE type = 'table'", [&](PlainSql::Row row) { rows[row.Bytes(0)]; });
  for (auto& [table, of_table] : rows) {
    sql.Rows(("SELECT * FROM " + table).c_str(), [&of_table](PlainSql::Row row) {
      std::string values;
      for (int column = 0; column < sqlite3_column_count(row.statement); ++column) {
        values += row.Bytes(column) + '\0';
      }
      of_table.push_back(std::move(values));
    });
  }
  return rows;
}

// Whether this process has SQLite's shared lock on a database, as another process sees it.
bool IsLocked(const std::filesystem::path& catalog) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int file = ::open(catalog.c_str(), O_RDWR | O_CLOEXEC);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = 0x40000000 + 2;  // SQLite's shared bytes
    lock.l_len = 510;
    ::_exit(file >= 0 && ::fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The catalog is copied as a file, or page by page where a reader keeps the log from being emptied. Neither may miss a
// row, take one that came later, or end what SQLite holds of the original.
TEST_F(StoreLife, AForksCatalogIsThatOfItsOriginalAtThatMoment) {
  const std::filesystem::path catalog = folder_ / "catalog.sqlite";
  auto writer = Create({.segment_bytes = 64 * 1024});
  static_cast<void>(Fill(*writer, 4));
  const auto expect_fork = [&](MemoryStore& store, const std::string& name) {
    const auto now = RowsOf(catalog);
    ASSERT_OK(store.Fork(root_ / name, {}));
    EXPECT_TRUE(IsLocked(catalog)) << "another process may take the log away from beside the writer";
    EXPECT_FALSE(std::filesystem::exists(root_ / name / "catalog.sqlite-journal"));
    ASSERT_EQ(AppendTo(*writer, TestBlock(60, 40).Draft()).status().code(), StatusCode::kOk);
    EXPECT_EQ(RowsOf(root_ / name / "catalog.sqlite"), now);
    EXPECT_NE(RowsOf(catalog), now);
    EXPECT_TRUE(MemoryStore::Open(root_ / name, false).value()->Verify(false)->damage.empty());
    PlainSql(root_ / name / "catalog.sqlite").Rows("PRAGMA integrity_check", [](PlainSql::Row row) {
      EXPECT_EQ(row.Bytes(0), "ok");
    });
  };
  expect_fork(*writer, "alone");
  {
    PlainSql reader(catalog);
    reader.Run("BEGIN");
    reader.Rows("SELECT id FROM blocks", [](PlainSql::Row) {});
    ASSERT_EQ(AppendTo(*writer, TestBlock(61, 40).Draft()).status().code(), StatusCode::kOk);
    expect_fork(*writer, "beside a reader of earlier rows");
    EXPECT_EQ(reader.Rows("SELECT id FROM blocks", [](PlainSql::Row) {}), 5) << "it reads what it read";
  }
  expect_fork(*Open(true), "by a reader");
  ASSERT_OK(writer->Forget(std::vector<int64_t>{2}));
  expect_fork(*writer, "again");
  const auto last = RowsOf(catalog);
  writer.reset();
  EXPECT_EQ(RowsOf(catalog), last);
}

TEST_F(StoreLife, AReaderForksBesideAWriter) {
  const std::filesystem::path branch = root_ / "branch.everlong";
  const auto writer = Create({.segment_bytes = 64 * 1024});
  std::vector<TestBlock> blocks = Fill(*writer, 4);
  ASSERT_OK(Open(true)->Fork(branch, {}));
  // The writer's segment was copied, not shared: what it appends is not in the fork's file.
  ASSERT_EQ(AppendTo(*writer, TestBlock(60, 40).Draft()).value(), 5);
  const auto fork = MemoryStore::Open(branch, false);
  ASSERT_OK(fork.status());
  ASSERT_EQ(AppendTo(**fork, TestBlock(61, 40).Draft()).value(), 5);
  ExpectStored(*writer, TestBlock(60, 40), 5);
  ExpectStored(**fork, TestBlock(61, 40), 5);
  for (int64_t id = 1; id <= 4; ++id) ExpectStored(**fork, blocks[static_cast<size_t>(id - 1)], id);
}

TEST_F(StoreLife, AMemoryInRamForksIntoAFolder) {
  const auto ram = MemoryStore::Create(std::nullopt, TestManifest()).value();
  const std::vector<TestBlock> blocks = Fill(*ram, 4);
  ASSERT_OK(ram->Forget(std::vector<int64_t>{1, 4}));
  ASSERT_OK(ram->Fork(folder_, {}));
  const auto fork = Open();
  ASSERT_EQ(fork->Blocks()->size(), 2U);
  for (const int64_t id : {2, 3}) ExpectStored(*fork, blocks[static_cast<size_t>(id - 1)], id);
  EXPECT_EQ(AppendTo(*fork, blocks[0].Draft()).value(), 5);
}

TEST_F(StoreLife, ForkingOverAMemoryIsRefusedAndHarmsNothing) {
  const auto store = Create();
  const std::vector<TestBlock> blocks = Fill(*store, 1);
  const std::filesystem::path other = root_ / "other.everlong";
  {
    const auto there = MemoryStore::Create(other, TestManifest());
    ASSERT_OK(there.status());
    ASSERT_OK(AppendTo(**there, TestBlock(5, 20).Draft()).status());
  }
  EXPECT_EQ(store->Fork(other, {}).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(store->Fork(folder_, {}).code(), StatusCode::kAlreadyExists);
  ExpectStored(**MemoryStore::Open(other, false), TestBlock(5, 20), 1);
  ExpectStored(*store, blocks[0], 1);
  // What a fork that fails has made is gone again.
  std::filesystem::remove(segment());
  EXPECT_EQ(store->Fork(root_ / "third.everlong", {}).code(), StatusCode::kCorrupt);
  EXPECT_FALSE(std::filesystem::exists(root_ / "third.everlong"));
}

}  // namespace
}  // namespace everlong::store
