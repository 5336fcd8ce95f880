// A folder from anybody: what lies in it leads nowhere. A file outside of it is neither read into the memory nor
// changed, and every refusal is a Status that memory_store.h names.
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store_fixture.h"
#include "store_sql.h"

namespace everlong::store {
namespace {

constexpr std::string_view kCanary = "-----BEGIN PRIVATE KEY----- nobody's business";
constexpr auto kOk = StatusCode::kOk;
constexpr auto kCorrupt = StatusCode::kCorrupt;

enum class Way : uint8_t { kSymbolic, kHard };

// What lies in the place of a file of the memory, and what comes of it.
struct Case {
  const char* name;
  Way way;
  StatusCode read;   // of Open for reading
  StatusCode write;  // of Open for writing
};

class StoreBoundary : public StoreFolderTest {
 protected:
  StoreBoundary() {
    std::filesystem::create_directory(outside_);
    WriteFile(canary_, std::string(kCanary));
    const auto store = Create();
    EXPECT_OK(AppendAll(*store, block_).status());
    EXPECT_OK(store->PutFile("note", std::as_bytes(std::span("hi", 2))));
  }
  ~StoreBoundary() override {
    EXPECT_EQ(ReadFile(canary_), kCanary);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(outside_), {}), 1) << "nothing was made beside it";
  }

  void Link(const std::filesystem::path& place, Way way) const {
    std::filesystem::remove_all(place);
    if (way == Way::kHard) return std::filesystem::create_hard_link(canary_, place);
    std::filesystem::create_symlink(std::filesystem::is_directory(place) ? outside_ : canary_, place);
  }
  // Do all that a store can do. It may refuse, by a Status of the header.
  void UseAll(MemoryStore& store, const std::string& to) const {
    const auto typed = [](const Status& status) {
      const std::set<StatusCode> named{kOk, kCorrupt, StatusCode::kNotFound, StatusCode::kReadOnly};
      EXPECT_TRUE(named.contains(status.code())) << status.ToString();
    };
    std::vector<std::byte> out;
    typed(ReadBlock(store, block_, 1, out));
    typed(store.Verify(false).status());
    typed(store.PutFile("note", std::as_bytes(std::span("new", 3))));
    typed(AppendTo(store, TestBlock(2, 20, 40).Draft()).status());
    typed(store.Export(root_ / (to + ".export")));
    typed(store.Fork(root_ / (to + ".fork"), [](const FilePath&) {}));
    typed(store.Forget(std::vector<int64_t>{1}));
    typed(store.Compact().status());
  }
  // Assert that nothing that was written has the canary's bytes.
  void ExpectNothingLeaked() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      if (!entry.is_regular_file() || entry.is_symlink() || std::filesystem::equivalent(entry, canary_)) continue;
      EXPECT_EQ(ReadFile(entry).find("PRIVATE KEY"), std::string::npos) << entry.path();
    }
  }

  const std::filesystem::path outside_ = root_ / "outside";
  const std::filesystem::path canary_ = outside_ / "canary";
  const TestBlock block_{1, 40};
};

class StoreLinks : public StoreBoundary, public testing::WithParamInterface<Case> {};

TEST_P(StoreLinks, LeadNowhere) {
  const auto& [name, way, read, write] = GetParam();
  Link(folder_ / name, way);
  for (const bool read_only : {true, false}) {
    const auto store = MemoryStore::Open(folder_, read_only);
    EXPECT_EQ(store.status().code(), read_only ? read : write) << name << ": " << store.status().ToString();
    if (store.ok()) UseAll(**store, read_only ? "reader" : "writer");
  }
  if (way == Way::kSymbolic) ExpectNothingLeaked();
}

INSTANTIATE_TEST_SUITE_P(
    Places, StoreLinks,
    testing::Values(
        Case{"LOCK", Way::kSymbolic, kOk, kOk}, Case{"LOCK", Way::kHard, kOk, kCorrupt},
        Case{"manifest.json", Way::kSymbolic, kCorrupt, kCorrupt},
        Case{"manifest.json", Way::kHard, kCorrupt, kCorrupt}, Case{"manifest.json.tmp", Way::kSymbolic, kOk, kOk},
        Case{"manifest.json.tmp", Way::kHard, kOk, kOk}, Case{"catalog.sqlite", Way::kSymbolic, kCorrupt, kCorrupt},
        Case{"catalog.sqlite", Way::kHard, kCorrupt, kCorrupt},
        Case{"catalog.sqlite-wal", Way::kSymbolic, kCorrupt, kCorrupt},
        Case{"catalog.sqlite-wal", Way::kHard, kCorrupt, kCorrupt},
        Case{"catalog.sqlite-shm", Way::kSymbolic, kCorrupt, kCorrupt},
        Case{"catalog.sqlite-shm", Way::kHard, kCorrupt, kCorrupt},
        Case{"catalog.sqlite-journal", Way::kSymbolic, kOk, kOk}, Case{"catalog.sqlite-journal", Way::kHard, kOk, kOk},
        Case{"segments/000001.kvseg", Way::kSymbolic, kOk, kOk}, Case{"segments/000001.kvseg", Way::kHard, kOk, kOk},
        Case{"segments/000002.kvseg", Way::kSymbolic, kOk, kOk}, Case{"segments/000002.kvseg", Way::kHard, kOk, kOk},
        Case{"segments", Way::kSymbolic, kOk, kCorrupt}, Case{"files/note", Way::kSymbolic, kOk, kOk},
        Case{"files/note", Way::kHard, kOk, kOk}, Case{"files/note.tmp", Way::kSymbolic, kOk, kOk},
        Case{"files/note.tmp", Way::kHard, kOk, kOk}, Case{"files", Way::kSymbolic, kOk, kCorrupt}));

// A link counts as somebody else's, whether there is something behind it or not.
TEST_F(StoreBoundary, AMemoryIsMadeWhereNoLinkIs) {
  const std::filesystem::path file = root_ / "export";
  ASSERT_OK(Open()->Export(file));
  for (const char* name : {"LOCK", "manifest.json", "catalog.sqlite", "segments", "files", "index"}) {
    for (const std::filesystem::path& target : {canary_, outside_, outside_ / "nothing"}) {
      const std::filesystem::path place = root_ / "new";
      std::filesystem::create_directory(place);
      std::filesystem::create_symlink(target, place / name);
      const auto refuses = [&](const Status& status) {
        EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << name << ": " << status.ToString();
      };
      refuses(MemoryStore::Create(place, TestManifest()).status());
      refuses(MemoryStore::Import(file, place).status());
      refuses(Open()->Fork(place, [](const FilePath&) {}));
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(place), {}), 1) << "a refusal changes nothing";
      std::filesystem::remove_all(place);
    }
  }
}

// A path of the user's own leads through links; a file that is there is left alone.
TEST_F(StoreBoundary, AnExportReplacesNothing) {
  const std::filesystem::path file = root_ / "export";
  for (const std::filesystem::path& target : {canary_, outside_ / "nothing"}) {
    std::filesystem::create_symlink(target, file);
    EXPECT_EQ(Open()->Export(file).code(), StatusCode::kAlreadyExists) << target;
    std::filesystem::remove(file);
  }
  std::filesystem::create_hard_link(canary_, file);
  EXPECT_EQ(Open()->Export(file).code(), StatusCode::kAlreadyExists);
}

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(value >> shift & 0xFF));
  return bytes;
}

// SQLite plays a rollback journal back that lies beside a catalog, and deletes the file that it names as its master.
TEST_F(StoreBoundary, AJournalOfOthersIsNotPlayedBack) {
  const std::string head = ReadFile(folder_ / "catalog.sqlite").substr(0, 100);
  const uint32_t page = static_cast<uint8_t>(head[16]) << 8 | static_cast<uint8_t>(head[17]);
  const auto pages = static_cast<uint32_t>(std::filesystem::file_size(folder_ / "catalog.sqlite") / page);
  const std::string magic = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7";
  const std::string name = canary_.string();
  uint32_t sum = 0;
  for (const char c : name) sum += static_cast<uint8_t>(c);
  std::string journal = magic + BigEndian(0) + BigEndian(0) + BigEndian(pages) + BigEndian(512) + BigEndian(page);
  journal.resize(512);
  journal += BigEndian(0x40000000 / page + 1) + name + BigEndian(static_cast<uint32_t>(name.size())) + BigEndian(sum);
  for (const bool read_only : {true, false}) {
    WriteFile(folder_ / "catalog.sqlite-journal", journal + magic);
    const auto store = Open(read_only);
    ASSERT_NE(store, nullptr);
    ExpectStored(*store, block_, 1);
    EXPECT_EQ(ReadFile(canary_), kCanary);
  }
}

// Another file system in the place of a folder of the memory's is not entered. Whoever may not mount one skips this.
TEST_F(StoreBoundary, AFileSystemOfItsOwnIsNotEntered) {
  for (const char* name : {"segments", "files"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool mounted = ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
                           ::mount(outside_.c_str(), (folder_ / name).c_str(), nullptr, MS_BIND, nullptr) == 0 &&
                           ::mount("none", (folder_ / name).c_str(), "tmpfs", 0, nullptr) == 0;
      if (!mounted) ::_exit(2);
      const auto store = MemoryStore::Open(folder_, false);
      const Status status = store.ok() ? (*store)->PutFile("note", {}) : store.status();
      ::_exit(status.code() == kCorrupt ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this process may not mount";
    EXPECT_EQ(WEXITSTATUS(status), 0) << name;
  }
}

}  // namespace
}  // namespace everlong::store
