// A disk that fails. Every call by which the store or SQLite changes a file passes through the functions below, which
// take the place of the C library's in this program: one after the other each of them fails, is torn in half, is the
// last thing the process does, or the last before the power goes. Whatever was acknowledged is there afterwards. So it
// is with every call by which they open a file or read it, which the system may refuse for reasons of its own.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <map>
#include <semaphore>
#include <set>
#include <thread>
#include <vector>

#include "base_opened_beneath.h"
#include "store_old_memories.h"
#include "store_open_hook.h"

namespace {

enum class Fault {
  kNone,
  kFail,               // one call fails and changes nothing; the process goes on
  kTear,               // one write puts half of its bytes down and fails; the process goes on
  kDie,                // the process is gone before one call
  kTearAndDie,         // and after half of one write
  kPowerLoss,          // the process is gone before one call, and with it every write that no fsync has followed
  kFailThenPowerLoss,  // one call fails, the process goes on, and at its end the power goes
};

// A write that is not durable yet: what stood there before.
struct Undo {
  std::string path;
  off_t offset = 0;
  std::string bytes;
  off_t size = 0;
};

struct Disk {
  std::string folder;  // only files in it count
  Fault fault = Fault::kNone;
  long at = -1;  // which call
  long calls = 0;
  int refusal = 0;  // set: what counts is opening and reading, and one such call fails with this errno
  std::vector<Undo> undo;
  std::set<std::string> synced;  // every path that an fsync has made durable
  // Another thread's first call waits until `go` says so, after it has said that it is there.
  const std::thread::id main = std::this_thread::get_id();
  bool holds = false;
  std::binary_semaphore held{0};
  std::binary_semaphore go{0};
};
Disk* g_disk = nullptr;  // mostly in a child process alone

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string PathOf(int fd) { return everlong::PathOfDescriptor(fd); }

bool IsOurs(const std::string& path) { return g_disk != nullptr && path.starts_with(g_disk->folder); }
bool Counts(const std::string& path) { return IsOurs(path) && g_disk->refusal == 0; }

// Whether a call that reads, or opens for it, is the one that is refused.
bool IsRefused(const std::string& path) {
  if (!IsOurs(path) || g_disk->refusal == 0 || g_disk->calls++ != g_disk->at) return false;
  errno = g_disk->refusal;
  return true;
}

// What open, in store_threads_test.cc, asks.
const bool g_hooked = [] {
  everlong::store::g_refuses_open = [](const everlong::OpenedBeneath& opened) {
    return g_disk != nullptr && IsRefused(opened.path());
  };
  return true;
}();

ssize_t ReadAs(const char* name, int fd, void* data, size_t count, off_t offset) {
  if (g_disk != nullptr && IsRefused(PathOf(fd))) return -1;
  return Real<ssize_t(int, void*, size_t, off_t)>(name)(fd, data, count, offset);
}

[[noreturn]] void LosePower() {
  const std::vector<Undo> undo = std::exchange(g_disk->undo, {});
  g_disk = nullptr;
  for (auto change = undo.rbegin(); change != undo.rend(); ++change) {
    const int fd = ::open(change->path.c_str(), O_RDWR);
    if (fd < 0) continue;
    if (::pwrite(fd, change->bytes.data(), change->bytes.size(), change->offset) < 0) ::_exit(8);
    if (::ftruncate(fd, change->size) != 0) ::_exit(8);
    ::close(fd);
  }
  ::_exit(9);
}

void Remember(int fd, const std::string& path, off_t offset, size_t count) {
  struct stat status = {};
  ::fstat(fd, &status);
  Undo undo{path, offset, std::string(count, '\0'), status.st_size};
  const ssize_t got = ::pread(fd, undo.bytes.data(), count, offset);
  undo.bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  g_disk->undo.push_back(std::move(undo));
}

// Whether this call is the one that fails; does not come back from one that is the last.
bool Strikes() {
  if (g_disk->holds && std::this_thread::get_id() != g_disk->main) {
    g_disk->holds = false;
    g_disk->held.release();
    g_disk->go.acquire();
  }
  if (g_disk->calls++ != g_disk->at) return false;
  if (g_disk->fault == Fault::kPowerLoss) LosePower();
  if (g_disk->fault == Fault::kDie) ::_exit(9);
  return true;
}

// The bytes of a write that reach the disk: all, or, of the one that is torn, half; -1 when none do.
ssize_t Allowed(int fd, off_t offset, size_t count) {
  if (g_disk == nullptr) return static_cast<ssize_t>(count);
  const std::string path = PathOf(fd);
  if (!Counts(path)) return static_cast<ssize_t>(count);
  const bool strikes = Strikes();
  Remember(fd, path, offset, count);
  if (!strikes) return static_cast<ssize_t>(count);
  if (g_disk->fault == Fault::kFail || g_disk->fault == Fault::kFailThenPowerLoss) return -1;
  return static_cast<ssize_t>(count / 2);
}

ssize_t AfterTear() {
  if (g_disk->fault == Fault::kTearAndDie) ::_exit(9);
  errno = ENOSPC;
  return -1;
}

int Synced(int fd, const char* name) {
  if (g_disk == nullptr) return Real<int(int)>(name)(fd);
  const std::string path = PathOf(fd);
  if (Counts(path)) {
    if (Strikes()) {
      errno = EIO;
      return -1;
    }
    g_disk->synced.insert(path);
    std::erase_if(g_disk->undo, [&path](const Undo& undo) { return undo.path == path; });
  }
  return Real<int(int)>(name)(fd);
}

// Whether a rename is the call that fails.
bool RenameFails(const std::string& from, const std::string& to) {
  if (g_disk == nullptr || !Counts(from)) return false;
  if (Strikes()) {
    errno = EIO;
    return true;
  }
  for (Undo& undo : g_disk->undo) {
    if (undo.path == from) undo.path = to;
  }
  return false;
}

ssize_t Written(int fd, const void* data, size_t count, off_t offset, const char* name) {
  const ssize_t allowed = Allowed(fd, offset, count);
  if (allowed < 0) {
    errno = EIO;
    return -1;
  }
  const ssize_t done =
      Real<ssize_t(int, const void*, size_t, off_t)>(name)(fd, data, static_cast<size_t>(allowed), offset);
  return static_cast<size_t>(allowed) < count ? AfterTear() : done;
}

int Truncated(int fd, off_t size, const char* name) {
  if (g_disk == nullptr) return Real<int(int, off_t)>(name)(fd, size);
  const std::string path = PathOf(fd);
  if (Counts(path)) {
    if (Strikes()) {
      errno = EIO;
      return -1;
    }
    struct stat status = {};
    ::fstat(fd, &status);
    Remember(fd, path, size, static_cast<size_t>(std::max<off_t>(0, status.st_size - size)));
  }
  return Real<int(int, off_t)>(name)(fd, size);
}

ssize_t WrittenPieces(int fd, const iovec* pieces, int count, off_t offset, const char* name) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  const ssize_t allowed = Allowed(fd, offset, bytes);
  if (allowed < 0) {
    errno = EIO;
    return -1;
  }
  if (static_cast<size_t>(allowed) == bytes) {
    return Real<ssize_t(int, const iovec*, int, off_t)>(name)(fd, pieces, count, offset);
  }
  auto left = static_cast<size_t>(allowed);
  for (int i = 0; i < count && left > 0; ++i) {
    const size_t part = std::min(left, pieces[i].iov_len);
    if (Real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, pieces[i].iov_base, part, offset) < 0) ::_exit(8);
    offset += static_cast<off_t>(part);
    left -= part;
  }
  return AfterTear();
}

}  // namespace

extern "C" {
ssize_t pread(int fd, void* data, size_t count, off_t offset) { return ReadAs("pread", fd, data, count, offset); }
ssize_t pread64(int fd, void* data, size_t count, off64_t offset) { return ReadAs("pread64", fd, data, count, offset); }
int open64(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  if (g_disk != nullptr && IsRefused(everlong::ResolvedPath(path))) return -1;
  return Real<int(const char*, int, ...)>("open64")(path, flags, mode);
}
ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  return Written(fd, data, count, offset, "pwrite");
}
ssize_t pwrite64(int fd, const void* data, size_t count, off64_t offset) {
  return Written(fd, data, count, offset, "pwrite64");
}
ssize_t pwritev(int fd, const iovec* pieces, int count, off_t offset) {
  return WrittenPieces(fd, pieces, count, offset, "pwritev");
}
ssize_t write(int fd, const void* data, size_t count) {
  const off_t offset = g_disk == nullptr ? 0 : ::lseek(fd, 0, SEEK_CUR);
  const ssize_t allowed = Allowed(fd, offset, count);
  if (allowed < 0) {
    errno = EIO;
    return -1;
  }
  const ssize_t done = Real<ssize_t(int, const void*, size_t)>("write")(fd, data, static_cast<size_t>(allowed));
  return static_cast<size_t>(allowed) < count ? AfterTear() : done;
}
int fsync(int fd) { return Synced(fd, "fsync"); }
int fdatasync(int fd) { return Synced(fd, "fdatasync"); }
int ftruncate(int fd, off_t size) noexcept { return Truncated(fd, size, "ftruncate"); }
int ftruncate64(int fd, off64_t size) noexcept { return Truncated(fd, size, "ftruncate64"); }
int rename(const char* from, const char* to) noexcept {
  return g_disk != nullptr && RenameFails(from, to) ? -1 : Real<int(const char*, const char*)>("rename")(from, to);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  // Paths take memory, of which a test may leave none.
  const bool fails =
      g_disk != nullptr && RenameFails(everlong::PathBeneath(from_folder, from), everlong::PathBeneath(to_folder, to));
  return fails ? -1 : Real<int(int, const char*, int, const char*)>("renameat")(from_folder, from, to_folder, to);
}
}

namespace everlong::store {
namespace {

constexpr StoreOptions kSmallSegments{.segment_bytes = 60 * 1024};

// What an own file holds before, and after it was replaced.
const std::vector<std::byte> kOldFile(5000, std::byte{1});
const std::vector<std::byte> kNewFile(7000, std::byte{2});

TestBlock BlockOf(int64_t id) { return {static_cast<uint64_t>(id), 20 + 7 * (id % 4), 100 * id}; }

// What the child tells through the pipe after a call has succeeded.
struct News {
  int64_t block = 0;
  enum : int64_t { kStored, kForgetting, kForgotten, kTensors, kGraph, kAttribute, kFile } what = kStored;
};

class StoreFaults : public StoreFolderTest {
 protected:
  // Two blocks to begin with. A block is known again by its span: it begins at 100 times its name.
  void SetUp() override {
    const auto store = Create(kSmallSegments);
    for (int64_t id = 1; id <= 2; ++id) ASSERT_OK(AppendAll(*store, BlockOf(id)).status());
    ASSERT_OK(store->PutFile("frame", kOldFile));
    std::filesystem::rename(folder_, template_);
  }

  // Everything a writer does, going on after every failure. Told: only what succeeded.
  static void Work(const std::filesystem::path& folder, int pipe) {
    const auto tell = [pipe](News news) {
      if (::write(pipe, &news, sizeof news) != sizeof news) ::_exit(7);
    };
    const auto opened = MemoryStore::Open(folder, false, kSmallSegments);
    if (!opened.ok()) return;
    MemoryStore& store = **opened;
    for (int64_t name = 3; name <= 4; ++name) {
      const auto id = AppendAll(store, BlockOf(name));
      if (id.ok()) tell({name, News::kStored});
    }
    // One block alone, and behind it a group that does not fit into what is left of its segment.
    std::map<int64_t, int64_t> submitted;  // id -> name
    g_disk->holds = true;
    for (int64_t name = 5; name <= 8; ++name) {
      const TestBlock block = BlockOf(name);
      std::vector<TensorView> tensors;
      const auto id = store.Submit(block.FullDraft(tensors));
      if (id.ok()) submitted.emplace(*id, name);
      if (name == 5) g_disk->held.acquire();
    }
    g_disk->go.release();
    std::vector<int64_t> lost;
    const Status flushed = store.Flush(&lost);
    if (flushed.ok() != lost.empty()) ::_exit(6);
    for (const int64_t id : lost) submitted.erase(id);
    for (const auto& [id, name] : submitted) tell({name, News::kStored});
    const std::vector<std::byte> vector(32, std::byte{3});
    const TensorView tensor{"v", "U8", {32}, vector};
    GraphChange change;
    change.put_nodes = {{.id = kTestTopic + 1, .kind = NodeKind::kEntity, .vector = {}, .linear_sum = {}}};
    change.put_edges = {{1, kTestTopic + 1, EdgeKind::kBelongsTo, 1, 0}};
    if (store.ChangeGraph(change).ok()) tell({1, News::kGraph});
    if (store.PutTensors(1, {&tensor, 1}).ok()) tell({1, News::kTensors});
    tell({2, News::kForgetting});
    if (store.Forget(std::vector<int64_t>{2}).ok()) tell({2, News::kForgotten});
    if (store.SetAttribute("said", "yes").ok()) tell({0, News::kAttribute});
    if (store.PutFile("frame", kNewFile).ok()) tell({0, News::kFile});
    static_cast<void>(store.Compact().status());
    if (AppendAll(store, BlockOf(9)).ok()) tell({9, News::kStored});
  }

  // One process that meets `fault` at call number `at` while it does `work` with a copy of the template. Returns how
  // many calls it made, or one more than `at` when it was the last.
  template <class Work, class Check>
  long Run(Fault fault, long at, const Work& work, const Check& check) {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(template_, folder_, std::filesystem::copy_options::recursive);
    int news[2];
    int count[2];
    EXPECT_EQ(::pipe(news), 0);
    EXPECT_EQ(::pipe(count), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Disk disk;
      disk.folder = folder_.string();
      disk.fault = fault;
      disk.at = at;
      g_disk = &disk;
      work(folder_, news[1]);
      if (fault == Fault::kFailThenPowerLoss && at >= 0) LosePower();
      g_disk = nullptr;
      if (::write(count[1], &disk.calls, sizeof disk.calls) != sizeof disk.calls) ::_exit(7);
      ::_exit(0);
    }
    ::close(news[1]);
    ::close(count[1]);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9))
        << "the writer crashed: " << status;
    long calls = at;
    if (::read(count[0], &calls, sizeof calls) != sizeof calls) calls = at + 1;
    std::vector<News> told;
    for (News heard; ::read(news[0], &heard, sizeof heard) == sizeof heard;) told.push_back(heard);
    ::close(news[0]);
    ::close(count[0]);
    check(told);
    return calls;
  }

  void Check(const std::vector<News>& told) {
    const auto store = Open(false, kSmallSegments);
    ASSERT_NE(store, nullptr);
    const Result<VerifyReport> report = store->Verify(false);
    ASSERT_OK(report.status());
    for (const Damage& damage : report->damage) ADD_FAILURE() << damage.what;
    std::map<int64_t, int64_t> ids;  // name -> id
    const std::vector<BlockInfo> infos = store->Blocks().value();
    for (const BlockInfo& info : infos) {
      const int64_t name = info.span.begin / 100;
      EXPECT_TRUE(ids.emplace(name, info.id).second) << "block " << name << " is there twice";
      ExpectStored(*store, BlockOf(name), info.id);
      if (name != 1) ExpectExtras(*store, BlockOf(name), info.id);  // in the same commit
    }
    const Graph graph = store->ReadGraph().value();
    std::set<int64_t> nodes;
    for (const GraphNode& node : graph.nodes) {
      if (node.kind == NodeKind::kBlock) nodes.insert(node.id);
    }
    EXPECT_EQ(nodes.size(), infos.size());
    for (const BlockInfo& info : infos) EXPECT_TRUE(nodes.contains(info.id)) << info.id;
    EXPECT_EQ(store->ReadTensor(1, "detail")->shape, (std::vector<int64_t>{3, 7}));
    const Result<std::vector<std::byte>> file = store->File("frame");
    ASSERT_OK(file.status());
    EXPECT_TRUE(*file == kOldFile || *file == kNewFile) << file->size() << " bytes of a file";
    std::set<int64_t> expected = {1, 2};
    for (const News& news : told) {
      if (news.what == News::kStored) expected.insert(news.block);
      if (news.what == News::kForgetting) expected.erase(news.block);
    }
    for (const int64_t name : expected) EXPECT_TRUE(ids.contains(name)) << "block " << name << " is lost";
    for (const News& news : told) {
      if (news.what == News::kForgotten) {
        EXPECT_FALSE(ids.contains(news.block)) << "block " << news.block << " came back";
      } else if (news.what == News::kTensors) {
        EXPECT_OK(store->ReadTensor(1, "v").status());
      } else if (news.what == News::kGraph) {
        EXPECT_EQ(store->EdgesOf(kTestTopic + 1)->size(), 1U);
      } else if (news.what == News::kAttribute) {
        EXPECT_EQ(store->manifest().attributes.at("said"), "yes");
      } else if (news.what == News::kFile) {
        EXPECT_TRUE(*file == kNewFile);
      }
    }
    ASSERT_OK(AppendTo(*store, BlockOf(10).Draft()).status());
  }

  void RunAll(Fault fault, int usual_points = 25) {
    RunAll(fault, usual_points, 40, &Work, [this](const std::vector<News>& told) { Check(told); });
  }

  template <class Work, class Check>
  void RunAll(Fault fault, int usual_points, long least_calls, const Work& work, const Check& check) {
    const long calls = Run(Fault::kNone, -1, work, check);
    ASSERT_GT(calls, least_calls) << "nothing passes through the failing disk";
    const long points = CampaignSize("FAULTS", usual_points);
    const long stride = std::max<long>(1, calls / points);
    for (long at = static_cast<long>(std::random_device{}()) % stride; at < calls && !HasFailure(); at += stride) {
      SCOPED_TRACE("call " + std::to_string(at) + " of " + std::to_string(calls));
      Run(fault, at, work, check);
    }
  }

  const std::filesystem::path template_ = root_ / "template";
};

TEST_F(StoreFaults, ACallFails) { RunAll(Fault::kFail); }
TEST_F(StoreFaults, AWriteIsTorn) { RunAll(Fault::kTear); }
TEST_F(StoreFaults, TheProcessDies) { RunAll(Fault::kDie); }
TEST_F(StoreFaults, TheProcessDiesInAWrite) { RunAll(Fault::kTearAndDie); }
TEST_F(StoreFaults, ThePowerGoes) { RunAll(Fault::kPowerLoss); }
// Every call, for only a few of them are the fsync in the middle of a group.
TEST_F(StoreFaults, ACallFailsAndThePowerGoesLater) { RunAll(Fault::kFailThenPowerLoss, 1000); }

// Each way in which a system may say no to a reader.
constexpr std::array kRefusals = {EIO, EACCES, EMFILE, ENOMEM, ESTALE};

// Calls work(disk) again and again, each time with another of the calls that open or read refused; `check` follows.
template <class Work, class Check>
void RefuseEach(const std::filesystem::path& folder, const Work& work, const Check& check) {
  for (const int refusal : kRefusals) {
    bool struck = true;
    for (long at = 0; struck && !testing::Test::HasFailure(); ++at) {
      SCOPED_TRACE("call " + std::to_string(at) + " errno " + std::to_string(refusal));
      Disk disk;
      disk.folder = folder.string();
      disk.refusal = refusal;
      disk.at = at;
      work(disk);
      g_disk = nullptr;
      struck = disk.calls > at;
      check(struck);
    }
  }
}

// One block is damaged in truth. A repair that may not read all drops nothing, not even that one; refused behind its
// commit, as SQLite may be while it rewrites the file, it has dropped that one alone.
TEST_F(StoreFaults, ARepairThatIsRefusedAReadDropsNothing) {
  {
    std::filesystem::rename(template_, folder_);
    const auto store = Open(false, kSmallSegments);
    for (int64_t id = 3; id <= 4; ++id) ASSERT_OK(AppendAll(*store, BlockOf(id)).status());
  }
  FlipBit(folder_ / "segments" / "000001.kvseg", size_t{8} * 5000);
  std::filesystem::rename(folder_, template_);
  const auto restore = [this] {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(template_, folder_, std::filesystem::copy_options::recursive);
  };
  restore();
  for (const bool repairs : {true, false}) {
    long kept_all = 0;
    Status status;
    std::vector<int64_t> dropped;
    const auto verify = [&](Disk& disk) {
      const auto store = Open(!repairs, kSmallSegments);
      ASSERT_NE(store, nullptr);
      g_disk = &disk;
      const Result<VerifyReport> report = store->Verify(repairs);
      g_disk = nullptr;
      status = report.status();
      dropped = report.ok() ? report->dropped : std::vector<int64_t>();
    };
    RefuseEach(folder_, verify, [&](bool struck) {
      const std::vector<BlockInfo> infos = Open(true)->Blocks().value();
      std::set<int64_t> left;
      for (const BlockInfo& info : infos) left.insert(info.id);
      if (status.ok()) {
        EXPECT_EQ(dropped, repairs ? std::vector<int64_t>{1} : std::vector<int64_t>());
      } else {
        EXPECT_TRUE(struck);
        EXPECT_EQ(status.code(), StatusCode::kIoError) << status.ToString();
      }
      if (left.contains(1)) {
        EXPECT_EQ(left.size(), 4U);
        ++kept_all;
        return;
      }
      EXPECT_TRUE(repairs);
      EXPECT_EQ(left, (std::set<int64_t>{2, 3, 4}));
      restore();
    });
    EXPECT_GT(kept_all, 50);
  }
}

// The first writer of an old memory meets each fault at each of its calls. Then a reader opens it, and a writer.
class StoreMigrationFaults : public StoreFaults, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { UnpackOld(GetParam(), template_); }

  void MigrateWith(Fault fault) {
    const auto migrate = [](const std::filesystem::path& folder, int) {
      static_cast<void>(MemoryStore::Open(folder, false).status());
    };
    const auto check = [this](const std::vector<News>&) {
      for (const bool read_only : {true, false}) {
        const auto store = Open(read_only);
        ASSERT_NE(store, nullptr);
        ExpectAnswers(*store, GetParam());
        const Result<VerifyReport> report = store->Verify(false);
        ASSERT_OK(report.status());
        for (const Damage& damage : report->damage) ADD_FAILURE() << damage.what;
      }
      EXPECT_EQ(ReadManifest(folder_)->format_version, kFormatVersion);
    };
    RunAll(fault, 1000, 6, migrate, check);
  }
};

TEST_P(StoreMigrationFaults, ACallFails) { MigrateWith(Fault::kFail); }
TEST_P(StoreMigrationFaults, AWriteIsTorn) { MigrateWith(Fault::kTear); }
TEST_P(StoreMigrationFaults, TheProcessDies) { MigrateWith(Fault::kDie); }
TEST_P(StoreMigrationFaults, TheProcessDiesInAWrite) { MigrateWith(Fault::kTearAndDie); }
TEST_P(StoreMigrationFaults, ThePowerGoes) { MigrateWith(Fault::kPowerLoss); }
TEST_P(StoreMigrationFaults, ACallFailsAndThePowerGoesLater) { MigrateWith(Fault::kFailThenPowerLoss); }

// Or what could not be read once would be taken for damaged ever after.
TEST_P(StoreMigrationFaults, ACallThatReadsIsRefused) {
  const auto restore = [this] {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(template_, folder_, std::filesystem::copy_options::recursive);
  };
  restore();
  const auto migrate = [this](Disk& disk) {
    g_disk = &disk;
    static_cast<void>(MemoryStore::Open(folder_, false).status());
    g_disk = nullptr;
  };
  RefuseEach(folder_, migrate, [&](bool) {
    const auto store = Open(false);
    ASSERT_NE(store, nullptr);
    ExpectAnswers(*store, GetParam());
    const Result<VerifyReport> report = store->Verify(false);
    ASSERT_OK(report.status());
    for (const Damage& damage : report->damage) ADD_FAILURE() << damage.what;
    restore();
  });
}

INSTANTIATE_TEST_SUITE_P(Memories, StoreMigrationFaults, testing::ValuesIn(kOldMemories));

// Or a crash takes a folder away whose memory has acknowledged blocks.
TEST_F(StoreFaults, EveryNewFolderIsDurableInTheOneAboveIt) {
  Disk disk;
  disk.folder = std::filesystem::canonical(root_).string();
  g_disk = &disk;
  const Status made = MemoryStore::Create(root_ / "a" / "b" / "memory" / "", TestManifest()).status();
  g_disk = nullptr;
  ASSERT_OK(made);
  for (const char* folder : {"", "/a", "/a/b", "/a/b/memory"}) {
    EXPECT_TRUE(disk.synced.contains(disk.folder + folder)) << folder;
  }
}

}  // namespace
}  // namespace everlong::store
