// A writer killed at random moments: every acknowledged block is there and bit exact, and the memory opens again.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include "store_fixture.h"

namespace everlong::store {
namespace {

const int kRounds = CampaignSize("KILLS", 60);
constexpr StoreOptions kSmallSegments{.segment_bytes = 256 * 1024};

// What the writer tells through the pipe after a call has returned.
struct Acknowledged {
  int64_t block = 0;
  bool forgotten = false;
};

TestBlock BlockOf(int64_t id) { return {static_cast<uint64_t>(id), 2 + (id * 29) % 70, 100 * id}; }

bool Forgets(int64_t id) { return id % 5 == 0; }

// Its node, a topic that has all nodes in its count, and what ties it to the block before it.
GraphChange ChangeOf(int64_t id) {
  const int64_t topic = kLargestBlockId + 1;
  GraphChange change;
  change.put_nodes = {BlockNode(kThisBlock, {static_cast<float>(id)}),
                      {.id = topic, .kind = NodeKind::kTopic, .level = 1, .vector = {}, .count = id, .linear_sum = {}}};
  change.put_edges = {{kThisBlock, topic, EdgeKind::kBelongsTo, 1, 0}};
  if (id > 1) change.put_edges.push_back({id - 1, kThisBlock, EdgeKind::kNext, 1, 0});
  return change;
}

// Blocks and graph are those of one commit.
void ExpectGraphOf(const MemoryStore& store, const std::set<int64_t>& blocks) {
  const Result<Graph> graph = store.ReadGraph();
  ASSERT_OK(graph.status());
  std::set<int64_t> nodes;
  for (const GraphNode& node : graph->nodes) {
    if (node.kind == NodeKind::kBlock) {
      nodes.insert(node.id);
      EXPECT_EQ(node.vector, std::vector<float>{static_cast<float>(node.id)});
    } else {
      EXPECT_EQ(node.count, *blocks.rbegin());
    }
  }
  EXPECT_EQ(nodes, blocks);
  size_t edges = blocks.size();
  for (const int64_t id : blocks) edges += blocks.contains(id - 1) ? 1 : 0;
  EXPECT_EQ(graph->edges.size(), edges);
  for (const int64_t id : blocks) {
    if (id + 8 < *blocks.rbegin()) continue;
    const Result<Tensor> tensor = store.ReadTensor(id, "drafted");
    ASSERT_OK(tensor.status());
    const std::vector<int32_t> ids = BlockOf(id).token_ids;
    const auto bytes = std::as_bytes(std::span(ids));
    EXPECT_TRUE(std::ranges::equal(tensor->bytes, bytes)) << id;
  }
}

// Appends for ever; forgets every fifth block; changes the manifest, adds tensors and compacts now and then.
[[noreturn]] void WriteUntilKilled(const std::filesystem::path& folder, int pipe) {
  const auto store = MemoryStore::Open(folder, false, kSmallSegments);
  if (!store.ok()) ::_exit(1);
  const auto blocks = (*store)->Blocks();
  if (!blocks.ok()) ::_exit(2);
  int64_t next = blocks->empty() ? 1 : blocks->back().id + 1;
  const auto tell = [pipe](const Acknowledged& news) {
    if (::write(pipe, &news, sizeof news) != sizeof news) ::_exit(3);
  };
  for (;; ++next) {
    const std::vector<int32_t> ids = BlockOf(next).token_ids;
    const TensorView drafted{"drafted", "I32", {std::ssize(ids)}, std::as_bytes(std::span(ids))};
    const TensorView tensor{"ids", "I32", {std::ssize(ids)}, std::as_bytes(std::span(ids))};
    const TestBlock block = BlockOf(next);
    BlockDraft draft = block.Draft();
    draft.tensors = {&drafted, 1};
    draft.graph = ChangeOf(next);
    const Result<int64_t> id = AppendTo(**store, draft);
    if (!id.ok()) ::_exit(4);
    if (*id != next) ::_exit(5);
    tell({next, false});
    // Never the newest block, so that the next writer finds the last id among the blocks.
    if (next > 1 && Forgets(next - 1)) {
      if (!(*store)->Forget(std::vector<int64_t>{next - 1}).ok()) ::_exit(6);
      tell({next - 1, true});
    }
    if (next % 4 == 0 && !(*store)->PutTensors(next, {&tensor, 1}).ok()) ::_exit(8);
    if (next % 6 == 0 && !(*store)->Compact().ok()) ::_exit(9);
    if (next % 7 == 0 && !(*store)->SetAttribute("last", std::to_string(next)).ok()) ::_exit(7);
  }
}

class StoreCrash : public StoreFolderTest {};

TEST_F(StoreCrash, EveryAcknowledgedBlockSurvivesSigkill) {
  ASSERT_NE(Create(kSmallSegments), nullptr);
  std::mt19937_64 random(std::random_device{}());
  std::map<int64_t, bool> acknowledged;  // block -> forgotten
  for (int round = 0; round < kRounds; ++round) {
    int news[2];
    ASSERT_EQ(::pipe(news), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(news[0]);
      WriteUntilKilled(folder_, news[1]);
    }
    ::close(news[1]);
    // Killed after some calls and in the midst of one, whatever the pace of this machine.
    Acknowledged heard;
    for (uint64_t calls = random() % 6; calls > 0 && ::read(news[0], &heard, sizeof heard) == sizeof heard; --calls) {
      acknowledged[heard.block] = heard.forgotten;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer gave up with " << WEXITSTATUS(status);
    while (::read(news[0], &heard, sizeof heard) == sizeof heard) acknowledged[heard.block] = heard.forgotten;
    ::close(news[0]);

    // Sometimes a reader comes first, to the log that the dead writer left.
    const auto store = Open(round % 3 == 0, kSmallSegments);
    ASSERT_NE(store, nullptr);
    const Result<std::vector<BlockInfo>> blocks = store->Blocks();
    ASSERT_OK(blocks.status());
    std::set<int64_t> present;
    for (const BlockInfo& info : *blocks) present.insert(info.id);
    for (const auto& [id, forgotten] : acknowledged) {
      // Between the two calls a kill leaves a block forgotten that was acknowledged as appended.
      EXPECT_TRUE(forgotten || present.contains(id) || Forgets(id))
          << "round " << round << ": block " << id << " is lost";
      EXPECT_FALSE(forgotten && present.contains(id)) << "round " << round << ": block " << id << " came back";
    }
    // Now and then every byte of it is checked.
    if (round % 10 == 0 || round + 1 == kRounds) {
      ExpectUndamaged(*store);
    }
    // All that is there is whole, acknowledged or not; the old rounds' blocks are looked at in the last one.
    for (const int64_t id : present) {
      if (round + 1 == kRounds || id + 8 > *present.rbegin()) ExpectStored(*store, BlockOf(id), id);
    }
    if (!present.empty()) ExpectGraphOf(*store, present);
    const Manifest manifest = store->manifest();
    EXPECT_EQ(manifest.fingerprint, TestManifest().fingerprint);
  }
  EXPECT_GT(acknowledged.size(), static_cast<size_t>(kRounds));
  const auto store = Open();
  EXPECT_GT(AppendTo(*store, BlockOf(1).Draft()).value(), acknowledged.rbegin()->first);
}

}  // namespace
}  // namespace everlong::store
