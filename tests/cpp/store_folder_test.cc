// A memory in a folder: reopening, one writer and many readers, rights, what a crash leaves behind.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "store_fixture.h"
#include "store_sql.h"

namespace everlong::store {
namespace {

constexpr uid_t kNobody = 65534;

// Runs `body` in a process of its own; true when it returned true.
bool InChild(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class StoreFolder : public StoreFolderTest {};

TEST_F(StoreFolder, ReopensWithTheSameBytes) {
  std::vector<TestBlock> blocks;
  {
    const auto store = Create();
    for (uint64_t i = 0; i < 5; ++i) {
      blocks.emplace_back(i, 10 + 17 * static_cast<int64_t>(i));
      ASSERT_OK(AppendTo(*store, blocks.back().Draft()).status());
    }
    ASSERT_OK(store->Forget(std::vector<int64_t>{2}));
    ASSERT_OK(store->SetAttribute("profile", "new"));
  }
  for (const bool read_only : {true, false}) {
    const auto store = Open(read_only);
    EXPECT_EQ(store->read_only(), read_only);
    EXPECT_EQ(store->folder(), folder_);
    EXPECT_EQ(store->manifest().attributes.at("profile"), "new");
    ASSERT_EQ(store->Blocks()->size(), 4U);
    for (const int64_t id : {1, 3, 4, 5}) ExpectStored(*store, blocks[static_cast<size_t>(id - 1)], id);
    EXPECT_EQ(store->Block(2).status().code(), StatusCode::kNotFound);
  }
  const auto store = Open();
  EXPECT_EQ(AppendTo(*store, blocks[0].Draft()).value(), 6);
  ExpectStored(*store, blocks[0], 6);
  ExpectStored(*store, blocks[4], 5);
}

TEST_F(StoreFolder, AForgottenLastIdIsNotReusedAfterReopening) {
  const TestBlock block(1, 20);
  {
    const auto store = Create();
    ASSERT_OK(AppendTo(*store, block.Draft()).status());
    ASSERT_OK(store->Forget(std::vector<int64_t>{1}));
  }
  EXPECT_EQ(AppendTo(*Open(), block.Draft()).value(), 2);
}

TEST_F(StoreFolder, AMemoryThatWasMadeWhereAnOpenOneWasRemovedIsLeftAlone) {
  const TestBlock block(1, 20);
  const auto removed = Create();
  ASSERT_OK(AppendTo(*removed, block.Draft()).status());
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(removed->Submit(block.Draft()).status().code(), StatusCode::kIoError);
  {
    const auto store = Create();
    ASSERT_OK(AppendTo(*store, block.Draft()).status());
    ASSERT_OK(store->SetAttribute("whose", "the new one's"));
    EXPECT_EQ(removed->SetAttribute("whose", "the removed one's").code(), StatusCode::kIoError);
    EXPECT_EQ(removed->PutFile("index", {}).code(), StatusCode::kIoError);
    EXPECT_EQ(removed->Submit(block.Draft()).status().code(), StatusCode::kIoError);
    EXPECT_EQ(removed->Forget(std::vector<int64_t>{1}).code(), StatusCode::kIoError);
  }
  EXPECT_EQ(Open()->manifest().attributes.at("whose"), "the new one's");
  EXPECT_TRUE(Open()->Verify(false).value().damage.empty());
}

TEST_F(StoreFolder, FilesAreForTheOwnerAlone) {
  const mode_t before = ::umask(0);
  for (const char* ending : {"", "/", "/.", "//"}) {
    std::filesystem::remove_all(folder_);
    auto made = MemoryStore::Create(folder_.string() + ending, TestManifest());
    ASSERT_OK(made.status());
    const auto store = std::move(made).value();
    ASSERT_OK(AppendTo(*store, TestBlock(1, 20).Draft()).status());
    ASSERT_OK(store->SetAttribute("a", "b"));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      struct stat status = {};
      ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777, entry.is_directory() ? 0700U : 0600U) << entry.path();
    }
    struct stat status = {};
    ASSERT_EQ(::stat(folder_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U);
  }
  ::umask(before);
}

TEST_F(StoreFolder, BeginsANewSegmentPastTheLimit) {
  const TestBlock block(1, 40);
  const StoreOptions options{.segment_bytes = 40 * 1024};  // a block's three records take 24 KiB
  {
    const auto store = Create(options);
    for (int i = 0; i < 3; ++i) ASSERT_OK(AppendTo(*store, block.Draft()).status());
  }
  {
    const auto store = Open(false, options);
    for (int i = 0; i < 3; ++i) ASSERT_OK(AppendTo(*store, block.Draft()).status());
    for (int64_t id = 1; id <= 6; ++id) ExpectStored(*store, block, id);
  }
  size_t segments = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "segments")) {
    ++segments;
    EXPECT_LE(entry.file_size(), 40U * 1024U) << entry.path();
  }
  EXPECT_EQ(segments, 6U);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "segments" / "000006.kvseg"));
}

TEST_F(StoreFolder, ABlockAboveTheLimitHasASegmentOfItsOwn) {
  const auto store = Create({.segment_bytes = 1});
  const TestBlock block(1, 40);
  for (int64_t id = 1; id <= 3; ++id) {
    ASSERT_EQ(AppendTo(*store, block.Draft()).value(), id);
    ExpectStored(*store, block, id);
  }
}

TEST_F(StoreFolder, CreateRefusesAFolderThatHoldsAMemory) {
  const TestBlock block(1, 20);
  {
    const auto store = Create();
    ASSERT_OK(AppendTo(*store, block.Draft()).status());
    EXPECT_EQ(MemoryStore::Create(folder_, TestManifest()).status().code(), StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(MemoryStore::Create(folder_, TestManifest()).status().code(), StatusCode::kAlreadyExists);
  ExpectStored(*Open(), block, 1);
  // Not even when the manifest got lost.
  std::filesystem::remove(folder_ / "manifest.json");
  EXPECT_EQ(MemoryStore::Create(folder_, TestManifest()).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(MemoryStore::Open(folder_, false).status().code(), StatusCode::kCorrupt);
}

// What a person has in a folder of his is there afterwards, whether a memory could be made in it or not.
TEST_F(StoreFolder, CreateLeavesAloneWhatIsSomebodyElses) {
  const auto refused = [this] {
    const Status status = MemoryStore::Create(folder_, TestManifest()).status();
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status.ToString();
    return status.message();
  };
  std::filesystem::create_directories(folder_ / "files");
  WriteFile(folder_ / "files" / "letter.txt", "dear");
  EXPECT_NE(refused().find("/files'"), std::string::npos);
  EXPECT_EQ(ReadFile(folder_ / "files" / "letter.txt"), "dear");
  std::filesystem::remove_all(folder_ / "files");

  for (const char* name : {"files", "index", "segments", "LOCK", "catalog.sqlite"}) {
    WriteFile(folder_ / name, "somebody else's");
    EXPECT_NE(refused().find(folder_.string()), std::string::npos);
    EXPECT_EQ(ReadFile(folder_ / name), "somebody else's");
    std::filesystem::remove(folder_ / name);
  }

  const std::string catalog = (folder_ / "catalog.sqlite").string();
  PlainSql(catalog).Run("CREATE TABLE books (title)");
  EXPECT_NE(refused().find(catalog), std::string::npos);
  std::filesystem::remove(catalog);
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a refusal changes nothing";

  WriteFile(folder_ / "notes.txt", "mine");
  EXPECT_NE(Create(), nullptr);
  EXPECT_EQ(ReadFile(folder_ / "notes.txt"), "mine");
}

// Blocks without kv have no segments; with the manifest lost they are all in the catalog.
TEST_F(StoreFolder, CreateRefusesACatalogThatHeldBlocks) {
  TestBlock block(1, 20);
  block.payload.clear();
  block.page_bytes.clear();
  ASSERT_OK(AppendTo(*Create(), block.Draft()).status());
  const std::string manifest = ReadFile(folder_ / "manifest.json");
  std::filesystem::remove(folder_ / "manifest.json");
  EXPECT_EQ(MemoryStore::Create(folder_, TestManifest()).status().code(), StatusCode::kAlreadyExists);
  WriteFile(folder_ / "manifest.json", manifest);
  EXPECT_EQ(Open()->Blocks()->size(), 1U);
}

TEST_F(StoreFolder, CreateTakesOverWhatACrashedCreateLeft) {
  {
    const auto store = Create();
  }
  std::filesystem::remove(folder_ / "manifest.json");
  EXPECT_EQ(MemoryStore::Open(folder_, false).status().code(), StatusCode::kNotFound);
  const auto store = Create();
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->Blocks()->empty());
}

TEST_F(StoreFolder, NoMemoryThere) {
  for (const bool read_only : {false, true}) {
    EXPECT_EQ(MemoryStore::Open(folder_, read_only).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(MemoryStore::Open(root_, read_only).status().code(), StatusCode::kNotFound);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_FALSE(std::filesystem::exists(root_ / "LOCK"));
}

TEST_F(StoreFolder, ASecondWriterIsToldWhoWrites) {
  auto store = Create();
  const auto expect_busy = [this](pid_t owner) {
    const Status busy = MemoryStore::Open(folder_, false).status();
    EXPECT_EQ(busy.code(), StatusCode::kBusy);
    EXPECT_NE(busy.message().find("pid " + std::to_string(owner) + " on host "), std::string::npos) << busy.message();
    return busy.code() == StatusCode::kBusy;
  };
  EXPECT_TRUE(expect_busy(::getpid()));
  const pid_t self = ::getpid();
  EXPECT_TRUE(InChild([&] { return expect_busy(self); }));
  store.reset();
  EXPECT_NE(Open(), nullptr);
}

TEST_F(StoreFolder, AForkOfTheWriterDoesNotHoldItsLock) {
  auto store = Create();
  int done[2];
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(done[1]);
    char byte = 0;
    const bool ended = ::read(done[0], &byte, 1) == 0;
    ::_exit(ended ? 0 : 1);
  }
  ::close(done[0]);
  EXPECT_EQ(MemoryStore::Open(folder_, false).status().code(), StatusCode::kBusy) << "its parent does";
  store.reset();
  EXPECT_NE(Open(), nullptr);
  ::close(done[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(StoreFolder, AMemoryStaysWhereItIsWhenTheProcessGoesElsewhere) {
  const std::filesystem::path before = std::filesystem::current_path();
  const TestBlock mine(1, 40);
  const TestBlock other(2, 40);
  const auto make = [&](const char* place, const TestBlock& block) {
    std::filesystem::create_directories(folder_ / place);
    std::filesystem::current_path(folder_ / place);
    StoreOptions options;
    options.host_bytes = 0;  // every read is one of the file
    auto store = MemoryStore::Create("memory", TestManifest(), options).value();
    for (int i = 0; i < 3; ++i) EXPECT_OK(AppendTo(*store, block.Draft()).status());
    return store;
  };
  auto store = make("a", mine);
  make("b", other).reset();
  // The working folder is b's now, where another memory has the name that this one was made by.
  ExpectStored(*store, mine, 1);
  EXPECT_OK(store->SetAttribute("of", "a"));
  EXPECT_OK(store->PutFile("note", std::as_bytes(std::span("a", 1))));
  EXPECT_OK(store->Forget(std::vector<int64_t>{2}));
  EXPECT_OK(store->Compact().status());
  EXPECT_EQ(store->folder(), folder_ / "a" / "memory");
  store.reset();
  store = MemoryStore::Open("memory", false).value();
  std::filesystem::current_path(folder_ / "a");
  EXPECT_EQ(store->manifest().attributes.count("of"), 0U);
  for (const int64_t id : {1, 2, 3}) ExpectStored(*store, other, id);
  EXPECT_TRUE(store->Verify(false)->damage.empty());
  EXPECT_EQ(store->File("note").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MemoryStore::Open("memory", false).value()->manifest().attributes.at("of"), "a");
  std::filesystem::current_path(before);
}

TEST_F(StoreFolder, ADeadOwnersLockIsTakenOver) {
  ASSERT_TRUE(Create() != nullptr);
  int opened[2];
  ASSERT_EQ(::pipe(opened), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = MemoryStore::Open(folder_, false);
    const char ok = store.ok() ? 1 : 0;
    if (::write(opened[1], &ok, 1) == 1) ::pause();
    ::_exit(1);
  }
  char ok = 0;
  ASSERT_EQ(::read(opened[0], &ok, 1), 1);
  EXPECT_EQ(ok, 1);
  const Status busy = MemoryStore::Open(folder_, false).status();
  EXPECT_EQ(busy.code(), StatusCode::kBusy);
  EXPECT_NE(busy.message().find("pid " + std::to_string(child)), std::string::npos) << busy.message();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(opened[0]);
  ::close(opened[1]);
  EXPECT_NE(Open(), nullptr);
}

TEST_F(StoreFolder, ReadersBesideAWriterSeeWhatIsCommitted) {
  const auto writer = Create();
  const auto reader = Open(true);
  const auto second = Open(true);
  const TestBlock first(1, 40);
  const TestBlock other(2, 20);
  EXPECT_TRUE(reader->Blocks()->empty());
  ASSERT_OK(AppendTo(*writer, first.Draft()).status());
  ExpectStored(*reader, first, 1);
  ASSERT_OK(AppendTo(*writer, other.Draft()).status());
  ExpectStored(*second, other, 2);
  EXPECT_EQ(reader->Blocks()->size(), 2U);
  ASSERT_OK(writer->Forget(std::vector<int64_t>{1}));
  EXPECT_EQ(reader->Block(1).status().code(), StatusCode::kNotFound);
  std::vector<std::byte> out;
  EXPECT_EQ(ReadBlock(*reader, first, 1, out).code(), StatusCode::kNotFound);
  ASSERT_OK(writer->SetAttribute("profile", "seen"));
  EXPECT_EQ(reader->manifest().attributes.at("profile"), "seen");
}

TEST_F(StoreFolder, AReaderRefusesToWrite) {
  ASSERT_OK(AppendTo(*Create(), TestBlock(1, 20).Draft()).status());
  const auto reader = Open(true);
  EXPECT_EQ(AppendTo(*reader, TestBlock(2, 20).Draft()).status().code(), StatusCode::kReadOnly);
  EXPECT_EQ(reader->Forget(std::vector<int64_t>{1}).code(), StatusCode::kReadOnly);
  EXPECT_EQ(reader->SetAttribute("a", "b").code(), StatusCode::kReadOnly);
  EXPECT_EQ(reader->Blocks()->size(), 1U);
  EXPECT_NE(Open(false), nullptr);  // a reader holds no lock
}

// A folder that may not be written, for a user who may not: closed cleanly, and with the log of a killed writer.
TEST_F(StoreFolder, ReadsAFolderWithoutTheRightToWrite) {
  const TestBlock block(1, 40);
  const TestBlock logged(2, 20);
  const auto protect = [this](bool on) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      ASSERT_EQ(::chmod(entry.path().c_str(), on ? (entry.is_directory() ? 0555 : 0444) : 0700), 0);
    }
    ASSERT_EQ(::chmod(root_.c_str(), on ? 0555 : 0700), 0);
  };
  const auto as_nobody = [this](const std::function<void(MemoryStore&)>& expect) {
    return InChild([&] {
      if (::geteuid() == 0 && ::setuid(kNobody) != 0) return false;
      if (std::ofstream(folder_ / "probe").good()) return false;  // or this would test nothing
      {
        auto store = MemoryStore::Open(folder_, true);
        EXPECT_OK(store.status());
        if (store.ok()) expect(**store);
      }
      EXPECT_EQ(MemoryStore::Open(folder_, false).status().code(), StatusCode::kIoError);
      return !testing::Test::HasFailure();
    });
  };
  ASSERT_OK(AppendTo(*Create(), block.Draft()).status());
  protect(true);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "catalog.sqlite-wal"));
  EXPECT_TRUE(as_nobody([&](MemoryStore& store) { ExpectStored(store, block, 1); }));
  protect(false);

  EXPECT_FALSE(InChild([&]() -> bool {
    const auto store = Open();
    EXPECT_OK(AppendTo(*store, logged.Draft()).status());
    ::kill(::getpid(), SIGKILL);
    return true;
  }));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "catalog.sqlite-wal"));
  protect(true);
  EXPECT_TRUE(as_nobody([&](MemoryStore& store) {
    ExpectStored(store, block, 1);
    ExpectStored(store, logged, 2);
  }));
  protect(false);
}

// The owner of a folder that nobody may write to opens it as unchanging; a writer comes after all.
class StoreUnchangingFolder : public StoreFolder {
 protected:
  using Use = std::function<void(MemoryStore&)>;

  // A memory of `block_`: `before` and then `after` in one reader of another process, `write` between the two, here.
  void ReadBesideALateWriter(const Use& before, const Use& write, const Use& after) const {
    ASSERT_OK(AppendTo(*Create(), block_.Draft()).status());
    Allow(0555, 0444);
    ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
    int ready[2];
    int go_on[2];
    ASSERT_EQ(::pipe(ready), 0);
    ASSERT_EQ(::pipe(go_on), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      char byte = 0;
      if (::geteuid() == 0 && ::setuid(kNobody) != 0) ::_exit(2);
      const auto store = MemoryStore::Open(folder_, true);
      EXPECT_OK(store.status());
      if (store.ok()) before(**store);
      if (::write(ready[1], &byte, 1) != 1 || ::read(go_on[0], &byte, 1) != 1) ::_exit(2);
      if (store.ok()) after(**store);
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ASSERT_EQ(::chmod(root_.c_str(), 0777), 0);
    Allow(0777, 0666);
    write(*Open());
    if (unchanging_again_) {
      Allow(0555, 0444);
    } else {
      Allow(0777, 0666);
    }
    ASSERT_EQ(::write(go_on[1], &byte, 1), 1);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    Allow(0777, 0666);
    for (const int fd : {ready[0], ready[1], go_on[0], go_on[1]}) ::close(fd);
  }
  // Rights of all that is in the folder.
  void Allow(mode_t folders, mode_t files) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      ASSERT_EQ(::chmod(entry.path().c_str(), entry.is_directory() ? folders : files), 0);
    }
  }
  static void AppendSecond(MemoryStore& store) { ASSERT_OK(AppendTo(store, TestBlock(2, 20).Draft()).status()); }

  const TestBlock block_{1, 40};
  bool unchanging_again_ = false;  // once the writer has gone
};

TEST_F(StoreUnchangingFolder, AReaderNoticesALaterWriter) {
  ReadBesideALateWriter([&](MemoryStore& store) { ExpectStored(store, block_, 1); }, &AppendSecond,
                        [](MemoryStore& store) { EXPECT_EQ(store.Blocks()->size(), 2U); });
}

TEST_F(StoreUnchangingFolder, AReaderServesNoPageThatALaterWriterHasForgotten) {
  unchanging_again_ = true;
  ReadBesideALateWriter([&](MemoryStore& store) { ExpectStored(store, block_, 1); },
                        [](MemoryStore& store) { ASSERT_OK(store.Forget(std::vector<int64_t>{1})); },
                        [&](MemoryStore& store) {
                          std::vector<std::byte> out;
                          EXPECT_EQ(ReadBlock(store, block_, 1, out).code(), StatusCode::kNotFound);
                        });
}

TEST_F(StoreUnchangingFolder, WhatAReaderExportsAfterALaterWriterCanBeImported) {
  ReadBesideALateWriter([](MemoryStore&) {}, &AppendSecond,
                        [&](MemoryStore& store) { EXPECT_OK(store.Export(root_ / "export")); });
  const auto imported = MemoryStore::Import(root_ / "export", std::nullopt);
  ASSERT_OK(imported.status());
  EXPECT_EQ((*imported)->Blocks()->size(), 2U);
}

TEST_F(StoreFolder, SkipsWhatACrashLeftBehindTheLastRecord) {
  const TestBlock block(1, 40);
  ASSERT_OK(AppendTo(*Create(), block.Draft()).status());
  const std::filesystem::path segment = folder_ / "segments" / "000001.kvseg";
  std::ofstream(segment, std::ios::binary | std::ios::app) << std::string(5'000, 'x');
  WriteFile(folder_ / "manifest.json.tmp", "half a mani");
  {
    const auto store = Open();
    EXPECT_FALSE(std::filesystem::exists(folder_ / "manifest.json.tmp"));
    EXPECT_EQ(AppendTo(*store, TestBlock(2, 40).Draft()).value(), 2);
    ExpectStored(*store, block, 1);
    ExpectStored(*store, TestBlock(2, 40), 2);
  }
  // A segment that was created, and no more.
  WriteFile(folder_ / "segments" / "000002.kvseg", "");
  const auto store = Open();
  EXPECT_EQ(AppendTo(*store, TestBlock(3, 40).Draft()).value(), 3);
  for (int64_t id = 1; id <= 3; ++id) ExpectStored(*store, TestBlock(static_cast<uint64_t>(id), 40), id);
  EXPECT_GT(std::filesystem::file_size(folder_ / "segments" / "000002.kvseg"), 0U);
}

TEST_F(StoreFolder, RefusesAPlaceThatIsNoFolder) {
  WriteFile(root_ / "file", "x");
  EXPECT_EQ(MemoryStore::Create(root_ / "file", TestManifest()).status().code(), StatusCode::kIoError);
  EXPECT_EQ(ReadFile(root_ / "file"), "x");
}

}  // namespace
}  // namespace everlong::store
