// Threads beside each other; worth most under ThreadSanitizer.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base_held_reader.h"
#include "base_opened_beneath.h"
#include "store_fixture.h"
#include "store_open_hook.h"

namespace {

std::atomic<int> g_threads_left = -1;         // so many may yet be started; -1: any number
const char* g_removed_before_lock = nullptr;  // once
std::atomic<bool> g_segments_wait = false;    // new ones, until it is false

}  // namespace

// These take the place of the C library's in this program.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  if (g_threads_left == 0) return EAGAIN;
  if (g_threads_left > 0) --g_threads_left;
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static auto* const create = reinterpret_cast<Create*>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}

extern "C" int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (everlong::store::g_refuses_open != nullptr &&
      everlong::store::g_refuses_open({AT_FDCWD, path, static_cast<uint64_t>(flags)}))
    return -1;
  if ((flags & O_CREAT) != 0 && std::string_view(path).ends_with(".kvseg")) g_segments_wait.wait(true);
  using Open = int(const char*, int, ...);
  static auto* const next = reinterpret_cast<Open*>(::dlsym(RTLD_NEXT, "open"));
  return next(path, flags, mode);
}

static bool RefusesBeneath(const everlong::OpenedBeneath& opened) {
  everlong::HoldReaderOfSegment(opened);
  if (everlong::store::g_refuses_open != nullptr && everlong::store::g_refuses_open(opened)) return true;
  if ((opened.flags & O_CREAT) != 0 && std::string_view(opened.name).ends_with(".kvseg")) g_segments_wait.wait(true);
  return false;
}
EVERLONG_SYSCALL_ASKING(RefusesBeneath)

extern "C" int flock(int fd, int operation) noexcept {
  if (const char* const path = std::exchange(g_removed_before_lock, nullptr)) ::unlink(path);
  using Flock = int(int, int);
  static auto* const lock = reinterpret_cast<Flock*>(::dlsym(RTLD_NEXT, "flock"));
  return lock(fd, operation);
}

namespace everlong::store {
namespace {

enum class Place { kRam, kFolder };

class StoreThreads : public StoreFolderTest, public testing::WithParamInterface<Place> {};

INSTANTIATE_TEST_SUITE_P(Places, StoreThreads, testing::Values(Place::kRam, Place::kFolder),
                         [](const auto& place) { return place.param == Place::kRam ? "Ram" : "Folder"; });

TEST_P(StoreThreads, TwoReadersBesideAnAppenderSeeWholeBlocksOnly) {
  constexpr int64_t kBlocks = 60;
  const auto place = GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_);
  const auto made = MemoryStore::Create(place, TestManifest(), {.segment_bytes = 256 * 1024});
  ASSERT_OK(made.status());
  MemoryStore& store = **made;
  const auto block_of = [](int64_t id) { return TestBlock(static_cast<uint64_t>(id), 5 + id % 40); };
  std::atomic<bool> done = false;
  std::thread appender([&] {
    for (int64_t id = 1; id <= kBlocks; ++id) {
      EXPECT_EQ(AppendTo(store, block_of(id).Draft()).value(), id);
      if (id % 10 == 0) {
        EXPECT_OK(store.Forget(std::vector<int64_t>{id}));
      }
      if (id % 9 == 0) {
        EXPECT_OK(store.SetAttribute("last", std::to_string(id)));
      }
    }
    done = true;
  });
  const auto read = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    // Beside the appender for as long as it runs, and long enough to have read something where it was quick.
    for (int whole = 0; whole < 20 || !done;) {
      const Result<std::vector<BlockInfo>> blocks = store.Blocks();
      ASSERT_OK(blocks.status());
      EXPECT_OK(store.Stats().status());
      EXPECT_EQ(store.manifest().geometry, TestManifest().geometry);
      if (blocks->empty()) continue;
      const int64_t id = (*blocks)[random() % blocks->size()].id;
      const TestBlock block = block_of(id);
      std::vector<std::byte> bytes;
      const Status status = ReadBlock(store, block, id, bytes);
      if (status.ok()) {
        ASSERT_TRUE(bytes == block.payload);
        ++whole;
      } else {  // it may have been forgotten since
        ASSERT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
        ASSERT_EQ(id % 10, 0);
      }
    }
  };
  std::thread first(read, 1);
  std::thread second(read, 2);
  appender.join();
  first.join();
  second.join();
  EXPECT_EQ(store.Blocks()->size(), static_cast<size_t>(kBlocks - kBlocks / 10));
}

// A reader of its own, as another process has it: what the writer commits lies between any two of its looks.
TEST_F(StoreFolderTest, AReaderBesideAWriterFindsNoDamageThatIsNotThere) {
  const auto writer = Create();
  const auto reader = Open(true);
  const TestBlock block(1, 5);
  std::atomic<bool> done = false;
  std::thread writing([&] {
    while (!done) {
      const Result<int64_t> id = AppendTo(*writer, block.Draft());
      ASSERT_OK(id.status());
      if (*id % 2 == 0) {
        ASSERT_OK(writer->Forget(std::vector<int64_t>{*id}));
      }
    }
  });
  for (int look = 0; look < CampaignSize("LOOKS", 300) && !HasFailure(); ++look) {
    EXPECT_OK(reader->Stats().status());
    if (look % 10 != 0) continue;
    ExpectUndamaged(*reader);
  }
  done = true;
  writing.join();
}

// Three blocks with all that a block may have.
std::vector<TestBlock> FillWithThree(MemoryStore& store) {
  std::vector<TestBlock> blocks;
  for (int64_t id = 1; id <= 3; ++id) {
    blocks.emplace_back(static_cast<uint64_t>(id), 40);
    EXPECT_EQ(AppendAll(store, blocks.back()).value(), id);
  }
  return blocks;
}

// A writer changes each of three blocks, and adds a fourth.
void ChangeThree(MemoryStore& store, std::span<const TestBlock> blocks) {
  const TestBlock other(9, 40);
  const TensorView tensor{"detail", "U8", {40}, std::span(other.payload).first(40)};
  EXPECT_EQ(AppendAll(store, other).value(), 4);
  EXPECT_OK(store.ReplacePages(1, other.payload, other.page_bytes, std::vector<std::string>{"anew"}));
  EXPECT_OK(store.PutTensors(2, {&tensor, 1}));
  EXPECT_OK(store.Forget(std::vector<int64_t>{3}));
  EXPECT_OK(store.Stats().status());
  std::vector<std::byte> bytes;
  EXPECT_OK(ReadBlock(store, blocks[1], 2, bytes));
  EXPECT_TRUE(bytes == blocks[1].payload);
}

TEST_F(StoreFolderTest, AWriterGoesOnBesideAVerifyOfOneMoment) {
  const auto store = Create({.host_bytes = 0});
  const std::vector<TestBlock> blocks = FillWithThree(*store);
  const VerifyReport whole = store->Verify(false).value();
  std::optional<Result<VerifyReport>> report;
  {
    const HeldReader verifier([&] { report = store->Verify(true); });
    ChangeThree(*store, blocks);
  }
  ASSERT_OK(report->status());
  EXPECT_TRUE((*report)->damage.empty());
  EXPECT_EQ((*report)->blocks, 3);
  EXPECT_EQ((*report)->records, whole.records);
  EXPECT_EQ((*report)->bytes, whole.bytes);
  EXPECT_EQ((*report)->nodes, whole.nodes);
  EXPECT_OK(store->Compact().status());
  ExpectUndamaged(*store);
  EXPECT_EQ(store->Blocks()->size(), 3U);
}

// The bytes of what the writer replaced and forgot may be gone when the reader comes to them.
TEST_F(StoreFolderTest, AVerifyOfAReaderFollowsTheWriter) {
  const auto store = Create();
  const std::vector<TestBlock> blocks = FillWithThree(*store);
  const auto reader = Open(true);
  std::optional<Result<VerifyReport>> report;
  {
    const HeldReader verifier([&] { report = reader->Verify(false); });
    ChangeThree(*store, blocks);
    EXPECT_OK(store->Compact().status());
  }
  ASSERT_OK(report->status());
  for (const Damage& damage : (*report)->damage) ADD_FAILURE() << damage.what;
  EXPECT_EQ((*report)->blocks, 3);
}

TEST_F(StoreFolderTest, AWriterGoesOnBesideAnExportOfOneMoment) {
  const auto store = Create({.host_bytes = 0});
  const std::vector<TestBlock> blocks = FillWithThree(*store);
  {
    const HeldReader exporter([&] { EXPECT_OK(store->Export(root_ / "exported")); });
    ChangeThree(*store, blocks);
  }
  const auto imported = MemoryStore::Import(root_ / "exported", std::nullopt);
  ASSERT_OK(imported.status());
  EXPECT_EQ((*imported)->Blocks()->size(), 3U);
  for (int64_t id = 1; id <= 3; ++id) {
    ExpectStored(**imported, blocks[static_cast<size_t>(id - 1)], id);
    ExpectExtras(**imported, blocks[static_cast<size_t>(id - 1)], id);
  }
}

TEST_P(StoreThreads, AVerifyBesideAWriterFindsNoDamageThatIsNotThere) {
  const auto place = GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_);
  const auto store = MemoryStore::Create(place, TestManifest()).value();
  const TestBlock block(1, 20);
  const TestBlock other(2, 20);
  const TensorView tensor{"detail", "U8", {20}, std::span(other.payload).first(20)};
  std::atomic<bool> done = false;
  std::thread writing([&] {
    while (!done) {
      const Result<int64_t> id = AppendAll(*store, block);
      ASSERT_OK(id.status());
      EXPECT_OK(store->PutTensors(*id, {&tensor, 1}));
      EXPECT_OK(store->ReplacePages(*id, other.payload, other.page_bytes, std::vector<std::string>{"anew"}));
      if (*id > 3) {
        EXPECT_OK(store->DropTensors(*id - 1, std::vector<std::string>{"detail", "ids", "none"}));
        EXPECT_OK(store->Forget(std::vector<int64_t>{*id - 3}));
      }
      if (*id % 10 == 0) {
        EXPECT_OK(store->Compact().status());
      }
    }
  });
  for (int look = 0; look < CampaignSize("LOOKS", place ? 40 : 1000) && !HasFailure(); ++look) {
    const Result<VerifyReport> report = store->Verify(look % 2 == 0);
    EXPECT_OK(report.status());
    for (const Damage& damage : report->damage) ADD_FAILURE() << damage.what;
  }
  done = true;
  writing.join();
}

// What was found may have gone since, or never have been there.
TEST_P(StoreThreads, ARepairDropsOnlyWhatItFindsDamagedItself) {
  const auto place = GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_);
  const auto store = MemoryStore::Create(place, TestManifest()).value();
  FillWithThree(*store);
  const Result<VerifyReport> repaired =
      store->Repair({.blocks = 3, .damage = {{0, "an edge"}, {1, "a page"}, {7, "a page"}}});
  ASSERT_OK(repaired.status());
  EXPECT_EQ(repaired->blocks, 3);
  EXPECT_TRUE(repaired->damage.empty());
  EXPECT_TRUE(repaired->dropped.empty());
  EXPECT_EQ(store->Blocks()->size(), 3U);
}

TEST_P(StoreThreads, AppendersTakeTurns) {
  constexpr int kEach = 15;
  const auto place = GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_);
  const auto made = MemoryStore::Create(place, TestManifest());
  ASSERT_OK(made.status());
  MemoryStore& store = **made;
  const auto append = [&store](uint64_t seed) {
    for (int i = 0; i < kEach; ++i) {
      TestBlock block(seed, 20);
      block.stream = static_cast<int64_t>(seed);
      EXPECT_OK(AppendTo(store, block.Draft()).status());
    }
  };
  std::thread first(append, 1);
  std::thread second(append, 2);
  first.join();
  second.join();
  const std::vector<BlockInfo> blocks = store.Blocks().value();
  ASSERT_EQ(blocks.size(), size_t{2 * kEach});
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].id, static_cast<int64_t>(i + 1));
    TestBlock block(static_cast<uint64_t>(blocks[i].stream), 20);
    block.stream = blocks[i].stream;
    ExpectStored(store, block, blocks[i].id);
  }
}

// Who reads a committed block under the lock that the commit of a queued one wants must not wait for that.
TEST_F(StoreFolderTest, AnExportWaitsForNothingThatWaitsForIt) {
  const auto store = Create({.segment_bytes = 1});
  const TestBlock block(1, 20);
  const auto later = [](const auto& call) {
    std::thread thread(call);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it waits for the lock now, most likely
    return thread;
  };
  const auto append = [&] { EXPECT_OK(AppendTo(*store, block.Draft()).status()); };
  for (int round = 0; round < 5; ++round) {
    g_segments_wait = true;
    std::thread holder = later(append);
    std::thread appender = later(append);
    std::thread exporter = later([&] { EXPECT_OK(store->Export(root_ / std::to_string(round))); });
    EXPECT_OK(store->Submit(block.Draft()).status());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    g_segments_wait = false;
    g_segments_wait.notify_all();
    for (std::thread* const thread : {&holder, &appender, &exporter}) thread->join();
    EXPECT_OK(store->Flush(nullptr));
  }
}

using StoreWithoutThreads = StoreFolderTest;

TEST_F(StoreWithoutThreads, ABlockThatNobodyCouldStoreIsRefused) {
  const auto store = Create();
  const TestBlock block(1, 20);
  g_threads_left = 0;
  const Status refused = store->Submit(block.Draft()).status();
  g_threads_left = -1;
  EXPECT_EQ(refused.code(), StatusCode::kIoError) << refused.ToString();
  std::vector<int64_t> lost;
  ASSERT_OK(store->Flush(&lost));
  EXPECT_TRUE(lost.empty());
  EXPECT_TRUE(store->Blocks()->empty());
  ASSERT_EQ(store->Submit(block.Draft()).value(), 1);
  ASSERT_OK(store->Flush(nullptr));
  ExpectStored(*store, block, 1);
}

TEST_F(StoreWithoutThreads, PagesAreReadByWhoWaitsForThem) {
  const TestBlock block(1, 60);
  ASSERT_EQ(AppendTo(*Create(), block.Draft()).value(), 1);
  for (const int threads : {0, 1}) {
    const auto store = Open(false, {.host_bytes = 0});
    for (int round = 0; round < 2; ++round) {
      g_threads_left = threads;
      std::vector<std::byte> bytes;
      const Status read = ReadBlock(*store, block, 1, bytes);
      g_threads_left = -1;
      EXPECT_OK(read);
      EXPECT_TRUE(bytes == block.payload);
    }
    ExpectStored(*store, block, 1);  // with all of them
  }
}

using StoreLock = StoreFolderTest;

// Another may remove the file, and make one anew, between the moment in which it is opened and that of the lock.
TEST_F(StoreLock, ALockIsNeverHeldOnAFileThatIsGone) {
  Create().reset();
  const std::string path = folder_ / "LOCK";
  g_removed_before_lock = path.c_str();
  const auto store = Open();
  ASSERT_NE(store, nullptr);
  ASSERT_EQ(g_removed_before_lock, nullptr);
  EXPECT_EQ(MemoryStore::Open(folder_, false).status().code(), StatusCode::kBusy);
}

TEST_P(StoreThreads, TensorsAreThereOrForgotten) {
  const auto place = GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_);
  const auto store = MemoryStore::Create(place, TestManifest()).value();
  const std::vector<std::byte> bytes(1 << 16, std::byte{5});
  const TensorView tensor{"v", "U8", {1 << 16}, bytes};
  std::atomic<int64_t> newest = 0;
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      const int64_t id = newest;
      if (id == 0) continue;
      const Result<std::vector<TensorInfo>> tensors = store->Tensors(id);
      EXPECT_TRUE(tensors.ok() || tensors.status().code() == StatusCode::kNotFound) << tensors.status().ToString();
      const Result<Tensor> read = store->ReadTensor(id, "v");
      EXPECT_TRUE(read.ok() || read.status().code() == StatusCode::kNotFound) << read.status().ToString();
    }
  });
  const TestBlock block(1, 4);
  const int rounds = GetParam() == Place::kRam ? 2000 : 20;
  for (int round = 0; round < rounds; ++round) {
    const int64_t id = AppendTo(*store, block.Draft()).value();
    EXPECT_OK(store->PutTensors(id, {&tensor, 1}));
    newest = id;
    std::this_thread::yield();
    EXPECT_OK(store->Forget(std::vector<int64_t>{id}));
    if (place) {
      EXPECT_OK(store->Compact().status());
    }
  }
  done = true;
  reader.join();
}

// Of a memory in RAM the old bytes go with the replacement, and in a folder with Compact.
TEST_P(StoreThreads, AReplacedTensorIsReadAsItWasOrAsItIs) {
  const auto place = GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_);
  const auto store = MemoryStore::Create(place, TestManifest()).value();
  const TestBlock block(1, 4);
  ASSERT_EQ(AppendTo(*store, block.Draft()).value(), 1);
  const int64_t empty = PayloadInRam(*store);
  const auto put = [&store](int round) {
    const std::vector<std::byte> bytes(static_cast<size_t>(5000 + 8192 * (round % 2)), static_cast<std::byte>(round));
    const TensorView tensor{"v", "U8", {std::ssize(bytes)}, bytes};
    EXPECT_OK(store->PutTensors(1, {&tensor, 1}));
  };
  put(0);
  const int64_t once = PayloadInRam(*store);
  std::atomic<bool> done = false;
  const auto read = [&] {
    while (!done) {
      const Result<Tensor> tensor = store->ReadTensor(1, "v");
      ASSERT_OK(tensor.status());
      const std::byte first = tensor->bytes.at(0);
      EXPECT_EQ(tensor->bytes.size(), static_cast<size_t>(5000 + 8192 * (static_cast<int>(first) % 2)));
      EXPECT_TRUE(std::ranges::all_of(tensor->bytes, [first](std::byte byte) { return byte == first; }));
    }
  };
  std::thread one(read);
  std::thread other(read);
  const int rounds = place ? 20 : 2000;
  for (int round = 1; round <= rounds; ++round) {
    put(round);
    if (place) {
      EXPECT_OK(store->Compact().status());
    }
  }
  done = true;
  one.join();
  other.join();
  EXPECT_EQ(PayloadInRam(*store), once);
  ASSERT_OK(store->DropTensors(1, std::vector<std::string>{"v"}));
  EXPECT_EQ(PayloadInRam(*store), empty);
  ExpectStored(*store, block, 1);
  ExpectUndamaged(*store);
}

TEST_P(StoreThreads, TwoMayWaitForTheSameReads) {
  const auto place = GetParam() == Place::kRam ? std::nullopt : std::optional<std::filesystem::path>(folder_);
  const auto store = MemoryStore::Create(place, TestManifest(), {.segment_bytes = 1}).value();
  const TestBlock block(1, 60);
  for (int64_t id = 1; id <= 20; ++id) {
    ASSERT_EQ(AppendTo(*store, block.Draft()).value(), id);
    std::vector<std::byte> out;
    const std::unique_ptr<PendingReads> pending = store->StartReadPages(WholeReads(block, id, out));
    std::thread other([&pending] { EXPECT_OK(pending->Wait()); });
    EXPECT_OK(pending->Wait());
    other.join();
    EXPECT_TRUE(out == block.payload);
  }
}

}  // namespace
}  // namespace everlong::store
