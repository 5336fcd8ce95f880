// A disk that fails: one after the other each call that changes a file fails, is torn in half, is the last thing the
// process does, or the last before the power goes. Whatever was acknowledged is there afterwards. So it is with every
// call that opens a file or reads it, which the system may refuse for reasons of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <set>
#include <vector>

#include "store_failing_disk.h"
#include "store_old_memories.h"

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

  void Restore() const {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(template_, folder_, std::filesystem::copy_options::recursive);
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
    Restore();
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
    ExpectUndamaged(*store);
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
  Restore();
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
      Restore();
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
        ExpectUndamaged(*store);
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
  Restore();
  const auto migrate = [this](Disk& disk) {
    g_disk = &disk;
    static_cast<void>(MemoryStore::Open(folder_, false).status());
    g_disk = nullptr;
  };
  RefuseEach(folder_, migrate, [&](bool) {
    const auto store = Open(false);
    ASSERT_NE(store, nullptr);
    ExpectAnswers(*store, GetParam());
    ExpectUndamaged(*store);
    Restore();
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
