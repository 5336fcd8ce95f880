// A store when an allocation fails: on the thread that stores, on those that read, on the caller's. What is said is
// kCapacity, the process goes on, and what was acknowledged is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <set>
#include <vector>

#include "store_fixture.h"

namespace {

enum class Thread { kCallers, kOthers };

// Allocations of such threads that are given before one is not; -1: all.
std::atomic<int64_t> g_left = -1;
std::atomic<Thread> g_of = Thread::kCallers;
thread_local bool g_is_callers = false;

bool Refused() {
  if (g_left.load(std::memory_order_relaxed) < 0 || g_is_callers != (g_of == Thread::kCallers)) return false;
  return g_left.fetch_sub(1) == 0;
}

// Allocations of `of` but the first `left` of them fail once, as long as this is there.
class Shortage {
 public:
  Shortage(Thread of, int64_t left) {
    g_is_callers = true;
    g_of = of;
    g_left = left;
  }
  ~Shortage() { g_left = -1; }
  // Whether it has struck.
  [[nodiscard]] bool over() const { return g_left < 0; }
};

}  // namespace

// These take the place of the library's in this program.
void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  return Refused() ? nullptr : std::malloc(std::max<std::size_t>(bytes, 1));
}
void* operator new(std::size_t bytes) {
  void* const buffer = operator new(bytes, std::nothrow);
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}
void operator delete(void* buffer, const std::nothrow_t& /*unused*/) noexcept { std::free(buffer); }
void operator delete(void* buffer) noexcept { std::free(buffer); }
void operator delete(void* buffer, std::size_t) noexcept { std::free(buffer); }

namespace everlong::store {
namespace {

class StoreAllocation : public StoreFolderTest {};

TestBlock BlockOf(int64_t id) { return {static_cast<uint64_t>(id), 20 + id % 30, 100 * id}; }

// Submits until nothing strikes any more, each time one allocation later.
void SubmitUnder(MemoryStore& store, Thread of, std::vector<int64_t>& stored) {
  bool struck = true;
  int64_t strikes = 0;
  for (int64_t left = 0; struck && !testing::Test::HasFailure(); ++left) {
    SCOPED_TRACE("allocation " + std::to_string(left));
    std::set<int64_t> submitted;
    std::vector<int64_t> lost;
    Status flushed;
    lost.reserve(16);
    {
      const TestBlock block = BlockOf(left);
      const BlockDraft draft = block.Draft();
      Status refused;
      std::vector<int64_t> ids;
      ids.reserve(2);
      {
        const Shortage shortage(of, left);
        for (int i = 0; i < 2; ++i) {
          const Result<int64_t> id = store.Submit(draft);
          if (id.ok()) {
            ids.push_back(*id);
          } else {
            refused = id.status();
          }
        }
        flushed = store.Flush(&lost);
        struck = shortage.over();
      }
      submitted.insert(ids.begin(), ids.end());
      strikes += struck ? 1 : 0;
      ASSERT_TRUE(refused.ok() || refused.code() == StatusCode::kCapacity) << refused.ToString();
      ASSERT_TRUE(flushed.ok() || flushed.code() == StatusCode::kCapacity) << flushed.ToString();
      ASSERT_EQ(flushed.ok(), lost.empty());
      for (const int64_t id : lost) ASSERT_EQ(submitted.erase(id), 1U);
      for (const int64_t id : submitted) ExpectStored(store, block, id);
      stored.insert(stored.end(), submitted.begin(), submitted.end());
    }
  }
  EXPECT_GT(strikes, 20);
}

TEST_F(StoreAllocation, ABlockThatThereIsNoMemoryForIsRefusedOrLost) {
  for (const bool in_ram : {false, true}) {
    const auto place = in_ram ? std::nullopt : std::optional(folder_);
    const auto store = MemoryStore::Create(place, TestManifest(), {.segment_bytes = 256 * 1024}).value();
    std::vector<int64_t> stored;
    SubmitUnder(*store, Thread::kCallers, stored);
    if (!in_ram) SubmitUnder(*store, Thread::kOthers, stored);
    const std::vector<BlockInfo> infos = store->Blocks().value();
    std::vector<int64_t> there;
    for (const BlockInfo& info : infos) there.push_back(info.id);
    EXPECT_EQ(there, stored);
    const Result<VerifyReport> report = store->Verify(false);
    ASSERT_OK(report.status());
    for (const Damage& damage : report->damage) ADD_FAILURE() << damage.what;
  }
}

TEST_F(StoreAllocation, AReadThatThereIsNoMemoryForIsDoneAgainOrRefused) {
  constexpr int64_t kBlocks = 12;
  {
    const auto store = Create();
    for (int64_t id = 1; id <= kBlocks; ++id) ASSERT_OK(AppendTo(*store, BlockOf(id).Draft()).status());
  }
  for (const Thread of : {Thread::kOthers, Thread::kCallers}) {
    bool struck = true;
    int64_t quiet = 0;  // the threads share the reads as they come, so that a few in a row must be without a strike
    for (int64_t left = 0; quiet < 5 && !HasFailure(); ++left) {
      SCOPED_TRACE("allocation " + std::to_string(left));
      const auto store = Open(false, {.host_bytes = 60'000});  // a tier that must evict
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<std::byte>> buffers;
        std::vector<PageRead> reads;
        for (int64_t id = 1; id <= kBlocks; ++id) {
          const TestBlock block = BlockOf(id);
          for (int32_t page = 0; page < block.pages(); ++page) {
            buffers.emplace_back(static_cast<size_t>(block.page_bytes[static_cast<size_t>(page)]));
          }
        }
        size_t at = 0;
        for (int64_t id = 1; id <= kBlocks; ++id) {
          const TestBlock block = BlockOf(id);
          for (int32_t page = 0; page < block.pages(); ++page) {
            reads.push_back({id, page, 0, kLayers, buffers[at]});
            ++at;
          }
        }
        Status status;
        {
          const Shortage shortage(of, round == 1 ? left : -1);
          status = store->ReadPages(reads);
          if (round == 1) struck = shortage.over();
        }
        if (round == 1 && of == Thread::kCallers && struck) {
          ASSERT_TRUE(status.ok() || status.code() == StatusCode::kCapacity) << status.ToString();
          if (!status.ok()) continue;
        }
        ASSERT_OK(status);
        at = 0;
        for (int64_t id = 1; id <= kBlocks; ++id) {
          const TestBlock block = BlockOf(id);
          for (int32_t page = 0; page < block.pages(); ++page) {
            ASSERT_EQ(buffers[at], block.Parts(page, 0, kLayers));
            ++at;
          }
        }
      }
      quiet = struck ? 0 : quiet + 1;
    }
  }
}

}  // namespace
}  // namespace everlong::store
