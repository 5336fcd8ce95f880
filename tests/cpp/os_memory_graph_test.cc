// A memory's graph against its blocks: nodes, the chain through time, topics whose sums are those of the nodes below;
// through forgetting, reopening, repair, other spaces, and writers that are killed.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "everlong/base/sqlite.h"
#include "everlong/graph/memory_graph.h"
#include "everlong/graph/sums.h"
#include "os_killed_at_call.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

using graph::GardenerOptions;
using graph::Sums;
using store::EdgeKind;
using store::GraphEdge;
using store::GraphNode;
using store::NodeKind;

void Tend(Memory& memory, int32_t at_once = 7) {
  while (true) {
    const Result<int64_t> tended = memory.graph().Tend(at_once);
    ASSERT_TRUE(tended.ok()) << tended.status().ToString();
    if (*tended == 0) return;
  }
}

// Of unit length: of the sum of the last layer's keys, as the test knows them.
std::vector<float> DirectionOfKeys(const Block& block) {
  std::vector<double> sum(kKvHeads * kDim, 0.0);
  for (int32_t head = 0; head < kKvHeads; ++head) {
    for (int64_t token = 0; token < block.span.size(); ++token) {
      for (int32_t d = 0; d < kDim; ++d) {
        sum[static_cast<size_t>(head * kDim + d)] += double{block.Key(kLayers - 1, head, token)[d]};
      }
    }
  }
  double square = 0;
  for (const double value : sum) square += value * value;
  std::vector<float> direction;
  for (const double value : sum) direction.push_back(static_cast<float>(value / std::sqrt(square)));
  return direction;
}

// The graph holds together, and has a node for every block that is in `tended`, or for all that are in the memory.
// With topics every node belongs to one, and all sums are those of the nodes below.
void ExpectWhole(const Memory& memory, bool all_tended, bool has_topics) {
  std::map<int64_t, store::BlockInfo> blocks;
  const std::vector<store::BlockInfo> infos = memory.blocks().Infos().value();
  for (const store::BlockInfo& block : infos) blocks[block.id] = block;
  const store::Graph graph = memory.graph().Read().value();
  std::map<int64_t, GraphNode> nodes;
  for (const GraphNode& node : graph.nodes) nodes[node.id] = node;
  std::map<int64_t, int64_t> parent;
  std::map<std::pair<int64_t, int64_t>, EdgeKind> in_time;
  for (const GraphEdge& edge : graph.edges) {
    if (edge.kind == EdgeKind::kBelongsTo) {
      EXPECT_TRUE(parent.emplace(edge.from, edge.to).second) << edge.from;
      EXPECT_EQ(nodes.at(edge.to).level,
                nodes.at(edge.from).kind == NodeKind::kBlock ? 0 : nodes.at(edge.from).level + 1);
    } else {
      in_time[{edge.from, edge.to}] = edge.kind;
    }
  }
  // The chain: the blocks of a stream that have nodes, in the order of their tokens.
  std::map<int64_t, std::map<int64_t, int64_t>> streams;
  for (const auto& [id, block] : blocks) {
    EXPECT_TRUE(nodes.contains(id) || !all_tended) << "block " << id << " has no node";
    if (nodes.contains(id)) streams[block.stream][block.span.begin] = id;
  }
  std::map<std::pair<int64_t, int64_t>, EdgeKind> chain;
  for (const auto& [stream, ids] : streams) {
    for (auto it = ids.begin(); it != ids.end() && std::next(it) != ids.end(); ++it) {
      chain[{it->second, std::next(it)->second}] = EdgeKind::kNext;
      chain[{std::next(it)->second, it->second}] = EdgeKind::kPrevious;
    }
  }
  EXPECT_EQ(in_time, chain);
  std::map<int64_t, Sums> sums;
  for (const auto& [id, node] : nodes) {
    if (node.kind != NodeKind::kBlock) continue;
    EXPECT_TRUE(blocks.contains(id)) << "node of no block " << id;
    EXPECT_EQ(node.created_at, blocks.at(id).created_at);
    EXPECT_EQ(parent.contains(id), has_topics) << id;
    for (int64_t above = id; parent.contains(above);) {
      above = parent.at(above);
      auto [of, added] = sums.try_emplace(above, static_cast<int32_t>(node.vector.size()));
      of->second.Add(Sums::Of(node.vector).value());
    }
  }
  for (const auto& [id, node] : nodes) {
    if (node.kind == NodeKind::kBlock) continue;
    ASSERT_TRUE(sums.contains(id)) << "topic " << id << " of nothing";
    EXPECT_EQ(sums.at(id), Sums(node.count, node.linear_sum, node.square_sum)) << "topic " << id;
    EXPECT_EQ(sums.at(id).Mean(), node.vector);
    EXPECT_EQ(parent.contains(id), node.level == 0);
  }
  EXPECT_EQ(sums.empty(), nodes.empty() || !has_topics);
}

TEST(OsMemoryGraph, HasEveryBlockWithTheDirectionOfItsKeys) {
  const Filled filled = FilledInRam(1);
  EXPECT_EQ(filled.memory->graph().Tend(5).value(), 0);  // nobody asked for one
  ASSERT_TRUE(filled.memory->graph().Grow({}).ok());
  EXPECT_EQ(filled.memory->graph().Tend(5).value(), 5);
  ExpectWhole(*filled.memory, false, true);
  Tend(*filled.memory);
  ExpectWhole(*filled.memory, true, true);
  for (const Block& block : filled.blocks) {
    const GraphNode node = filled.memory->graph().Node(block.id).value();
    const std::vector<float> expected = DirectionOfKeys(block);
    ASSERT_EQ(node.vector.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(node.vector[i], expected[i], 1e-5);
  }
  EXPECT_EQ(filled.memory->graph().Tend(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(filled.memory->graph().Grow({.levels = 0}).code(), StatusCode::kInvalidArgument);
}

TEST(OsMemoryGraph, ForgetsExactlyAndClosesTheChain) {
  for (const bool asked : {true, false}) {  // also where this opener did not ask for the graph
    const TemporaryFolder root;
    const std::filesystem::path folder = root.path() / "memory";
    {
      const Filled filled = Fill(Memory::Create(folder, TestManifest()).value(), 2, 30);
      ASSERT_TRUE(filled.memory->graph().Grow({.most_members = 6}).ok());
      Tend(*filled.memory);
    }
    const auto memory = Memory::Open(folder, false).value();
    if (asked) {
      ASSERT_TRUE(memory->graph().Grow({.most_members = 6}).ok());
    }
    ASSERT_TRUE(memory->blocks().Forget(std::vector<int64_t>{3}).ok());
    ExpectWhole(*memory, true, true);
    std::vector<int64_t> many;
    for (int64_t id = 5; id < 20; ++id) many.push_back(id);
    ASSERT_TRUE(memory->blocks().Forget(many).ok());
    ExpectWhole(*memory, true, true);
    EXPECT_EQ(memory->blocks().Forget(std::vector<int64_t>{1, 3}).code(), StatusCode::kNotFound);
    ExpectWhole(*memory, true, true);
    ASSERT_TRUE(memory->upkeep().Compact().ok());
    EXPECT_TRUE(memory->upkeep().Verify(false)->damage.empty());
    std::vector<int64_t> rest;
    const std::vector<store::BlockInfo> infos = memory->blocks().Infos().value();
    for (const store::BlockInfo& block : infos) rest.push_back(block.id);
    ASSERT_TRUE(memory->blocks().Forget(rest).ok());
    EXPECT_EQ(memory->graph().Read().value(), store::Graph());
  }
}

TEST(OsMemoryGraph, GoesOnWhereItWas) {
  const TemporaryFolder root;
  const std::filesystem::path folder = root.path() / "memory";
  store::Graph before;
  {
    const Filled filled = Fill(Memory::Create(folder, TestManifest()).value(), 3, 20);
    ASSERT_TRUE(filled.memory->graph().Grow({}).ok());
    EXPECT_EQ(filled.memory->graph().Tend(12).value(), 12);
    before = filled.memory->graph().Read().value();
  }
  const auto memory = Memory::Open(folder, false).value();
  ASSERT_TRUE(memory->graph().Grow({}).ok());
  EXPECT_EQ(memory->graph().Read().value(), before);
  EXPECT_EQ(memory->graph().Tend(100).value(), 8);
  EXPECT_EQ(memory->graph().Tend(100).value(), 0);
  ExpectWhole(*memory, true, true);
  // And a reader sees it.
  const auto reader = Memory::Open(folder, true).value();
  EXPECT_EQ(reader->graph().Read().value(), memory->graph().Read().value());
  EXPECT_EQ(reader->graph().Grow({}).code(), StatusCode::kReadOnly);
  // So do a fork and an export.
  ASSERT_TRUE(memory->upkeep().Fork(root.path() / "fork").ok());
  EXPECT_EQ(Memory::Open(root.path() / "fork", true).value()->graph().Read().value(), memory->graph().Read().value());
  ASSERT_TRUE(memory->upkeep().Export(root.path() / "file").ok());
  const auto imported = Memory::Import(root.path() / "file", std::nullopt).value();
  EXPECT_EQ(imported->graph().Read().value(), memory->graph().Read().value());
  ASSERT_TRUE(imported->blocks().Forget(std::vector<int64_t>{1, 2, 3}).ok());
  ExpectWhole(*imported, true, true);
}

TEST(OsMemoryGraph, TakesTheEncodersVectorsAndWaitsForThem) {
  const Filled filled = FilledInRam(4, 12);
  Memory& memory = *filled.memory;
  ASSERT_TRUE(memory.graph().Grow({}).ok());
  Tend(memory);
  ASSERT_TRUE(memory.index().SetPageVectors({"encoder", 3}).ok());
  ASSERT_TRUE(memory.graph().Grow({}).ok());  // vectors of keys are of no use any more
  EXPECT_EQ(memory.graph().Read().value(), store::Graph());
  EXPECT_EQ(memory.graph().Tend(100).value(), 0);
  for (int64_t id = 1; id <= 9; ++id) {
    const float x = static_cast<float>(id) / 10;
    ASSERT_TRUE(
        memory.index().AddPageVectors(id, std::vector<int32_t>{0, 0}, std::vector<float>{x, 1, 0, x, 0, 1}).ok());
  }
  EXPECT_EQ(memory.graph().Tend(100).value(), 9);
  const std::vector<float> vector = memory.graph().Node(5).value().vector;
  // The mean of (0.5, 1, 0) and (0.5, 0, 1), each of unit length, has this direction.
  for (const auto& [i, value] : std::map<size_t, double>{{0, 1}, {1, 1}, {2, 1}}) {
    EXPECT_NEAR(vector[i], value / std::sqrt(3.0), 1e-6);
  }
  ExpectWhole(memory, false, true);
}

TEST(OsMemoryGraph, OfTextAloneIsTheChain) {
  store::Manifest manifest = TestManifest();
  manifest.geometry.layers = 0;
  manifest.geometry.kv_heads = 0;
  manifest.geometry.head_dim = 0;
  auto memory = Memory::Create(std::nullopt, manifest);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  std::mt19937_64 random(5);
  for (int64_t i = 0; i < 5; ++i) {
    const Block block = RandomBlock(random, 0, 10 * i, 10);
    ASSERT_TRUE((*memory)->blocks().Append(DraftOf(block)).ok());
  }
  ASSERT_TRUE((*memory)->graph().Grow({}).ok());
  Tend(**memory);
  ExpectWhole(**memory, true, false);
  ASSERT_TRUE((*memory)->blocks().Forget(std::vector<int64_t>{2, 3}).ok());
  ExpectWhole(**memory, true, false);
  EXPECT_EQ((*memory)->graph().Path(1, 5).value(), (std::vector<int64_t>{1, 4, 5}));
}

TEST(OsMemoryGraph, FindsTheShortestWay) {
  const Filled filled = FilledInRam(6, 25);
  Memory& memory = *filled.memory;
  ASSERT_TRUE(memory.graph().Grow({}).ok());
  Tend(memory);
  const store::Graph graph = memory.graph().Read().value();
  std::map<int64_t, std::set<int64_t>> beside;
  for (const GraphEdge& edge : graph.edges) {
    beside[edge.from].insert(edge.to);
    beside[edge.to].insert(edge.from);
  }
  for (const GraphNode& from : graph.nodes) {
    // Distances by breadth-first search over the whole graph.
    std::map<int64_t, size_t> distance{{from.id, 0}};
    std::vector<int64_t> queue{from.id};
    for (size_t i = 0; i < queue.size(); ++i) {
      for (const int64_t next : beside[queue[i]]) {
        if (distance.try_emplace(next, distance[queue[i]] + 1).second) queue.push_back(next);
      }
    }
    for (const GraphNode& to : graph.nodes) {
      const std::vector<int64_t> path = memory.graph().Path(from.id, to.id).value();
      ASSERT_EQ(path.empty(), !distance.contains(to.id));
      if (path.empty()) continue;
      EXPECT_EQ(path.size(), distance[to.id] + 1);
      EXPECT_EQ(path.front(), from.id);
      EXPECT_EQ(path.back(), to.id);
      for (size_t i = 1; i < path.size(); ++i) EXPECT_TRUE(beside[path[i - 1]].contains(path[i]));
    }
  }
  EXPECT_EQ(memory.graph().Path(1, 999).status().code(), StatusCode::kNotFound);
}

TEST(OsMemoryGraph, GrowsAnewWhereARepairTookNodesOut) {
  const TemporaryFolder root;
  const std::filesystem::path folder = root.path() / "memory";
  {
    const Filled filled = Fill(Memory::Create(folder, TestManifest()).value(), 7, 20);
    ASSERT_TRUE(filled.memory->graph().Grow({}).ok());
    Tend(*filled.memory);
  }
  {
    Database database = Database::Open(folder / "catalog.sqlite", SQLITE_OPEN_READWRITE).value();
    ASSERT_TRUE(database.Execute("UPDATE nodes SET count = count + 1 WHERE kind = 2 AND level = 0").ok());
  }
  const auto memory = Memory::Open(folder, false).value();
  EXPECT_EQ(memory->graph().Grow({}).code(), StatusCode::kCorrupt);
  ASSERT_TRUE(memory->blocks().Forget(std::vector<int64_t>{4}).ok());  // whatever the graph is like
  EXPECT_FALSE(memory->upkeep().Verify(true)->damage.empty());
  ASSERT_TRUE(memory->graph().Grow({}).ok());
  Tend(*memory);
  ExpectWhole(*memory, true, true);
}

TEST(OsMemoryGraph, GrowsBesideReadingSearchingAndForgetting) {
  const TemporaryFolder root;
  const auto memory = Memory::Create(root.path() / "memory", TestManifest()).value();
  ASSERT_TRUE(memory->graph().Grow({.most_members = 8}).ok());
  std::atomic<bool> done = false;
  std::thread tending([&] {
    while (!done) {
      const Result<int64_t> tended = memory->graph().Tend(3);
      EXPECT_TRUE(tended.ok()) << tended.status().ToString();
      if (!tended.ok()) return;
    }
  });
  std::mt19937_64 random(8);
  std::vector<int64_t> ids;
  for (int i = 0; i < 120; ++i) {
    const auto stream = static_cast<int64_t>(random() % 3);
    const auto id = Append(*memory, RandomBlock(random, stream, memory->blocks().StreamEnd(stream), 4));
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
    const std::vector<int32_t> question{static_cast<int32_t>(random() % 50)};
    SearchRequest request;
    request.token_ids = question;
    request.kinds = {IndexPart::kLexical};
    EXPECT_TRUE(memory->search().Find(request).ok());
    if (i % 7 == 6) {
      const size_t which = random() % ids.size();
      EXPECT_TRUE(memory->blocks().Forget(std::vector<int64_t>{ids[which]}).ok());
      ids.erase(ids.begin() + static_cast<int64_t>(which));
    }
    if (i % 40 == 39) {
      EXPECT_TRUE(memory->upkeep().Compact().ok());
    }
  }
  EXPECT_TRUE(memory->upkeep().Flush().ok());
  done = true;
  tending.join();
  Tend(*memory);
  ExpectWhole(*memory, true, true);
}

constexpr GardenerOptions kSmallTopics{.most_members = 8};

// What the writer has behind it, through the pipe.
struct Done {
  enum Kind : int64_t { kTended, kForgotten, kAll };
  int64_t kind = kTended;
  int64_t of = 0;  // the newest block with a node; the one that was forgotten; how many calls changed a file in all
};

// Appends, tends and forgets, the same every time; blocks go to disk beside it.
[[noreturn]] void GrowAndForget(const std::filesystem::path& folder, long killed_after, int pipe) {
  KillAfterCalls(killed_after);
  const auto tell = [pipe](const Done& done) {
    if (::write(pipe, &done, sizeof done) != sizeof done) ::_exit(8);
  };
  {
    auto opened = Memory::Open(folder, false);
    if (!opened.ok()) ::_exit(1);
    Memory& memory = **opened;
    if (!memory.graph().Grow(kSmallTopics).ok()) ::_exit(2);
    std::mt19937_64 random(11);
    for (int round = 0; round < 12; ++round) {
      for (int i = 0; i < 3; ++i) {
        const auto stream = static_cast<int64_t>(random() % 2);
        if (!Append(memory, RandomBlock(random, stream, memory.blocks().StreamEnd(stream), 3)).ok()) ::_exit(3);
      }
      if (!memory.graph().Tend(4).ok()) ::_exit(4);
      const auto nodes = memory.graph().Nodes(NodeKind::kBlock);
      if (!nodes.ok()) ::_exit(9);
      tell({Done::kTended, nodes->back().id});
      const auto blocks = memory.blocks().Infos();
      if (!blocks.ok()) ::_exit(5);
      std::vector<int64_t> gone;
      for (int i = 0; i < 2; ++i) gone.push_back((*blocks)[random() % blocks->size()].id);
      std::ranges::sort(gone);
      gone.erase(std::ranges::unique(gone).begin(), gone.end());
      if (!memory.blocks().Forget(gone).ok()) ::_exit(6);
      for (const int64_t id : gone) tell({Done::kForgotten, id});
      if (round % 5 == 4 && !memory.upkeep().Compact().ok()) ::_exit(7);
    }
  }
  tell({Done::kAll, CallsMade()});
  ::_exit(0);
}

int64_t NumberOf(const char* variable, int64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::stoll(value);
}

TEST(OsMemoryGraph, AgreesWithTheBlocksWhereverItsWriterIsKilled) {
  const TemporaryFolder root;
  const std::filesystem::path before = root.path() / "before";
  const std::filesystem::path folder = root.path() / "memory";
  {
    const Filled filled = Fill(Memory::Create(before, TestManifest()).value(), 12, 30);
    ASSERT_TRUE(filled.memory->graph().Grow(kSmallTopics).ok());
    Tend(*filled.memory);
  }
  const auto places = static_cast<long>(NumberOf("EVERLONG_GRAPH_KILLS", 40));
  std::mt19937_64 random(static_cast<uint64_t>(NumberOf("EVERLONG_GRAPH_KILLS_SEED", 1)));
  long calls = 0;  // of a writer that nobody kills
  long killed = 0;
  for (long place = -1; place < places && !testing::Test::HasFailure(); ++place) {
    // One in each of as many equal parts of its life.
    const long at =
        place < 0 ? -1 : (place * calls + static_cast<long>(random() % static_cast<uint64_t>(calls))) / places;
    SCOPED_TRACE("killed before call " + std::to_string(at) + " of " + std::to_string(calls));
    std::filesystem::remove_all(folder);
    std::filesystem::copy(before, folder, std::filesystem::copy_options::recursive);
    int news[2];
    ASSERT_EQ(::pipe(news), 0);
    const pid_t child = ::fork();
    if (child == 0) GrowAndForget(folder, at, news[1]);
    ::close(news[1]);
    std::set<int64_t> forgotten;
    int64_t tended = 0;
    for (Done done; ::read(news[0], &done, sizeof done) == sizeof done;) {
      if (done.kind == Done::kTended) tended = done.of;
      if (done.kind == Done::kForgotten) forgotten.insert(done.of);
      if (done.kind == Done::kAll) calls = std::max(calls, static_cast<long>(done.of));
    }
    ::close(news[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (place < 0) {
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
      ASSERT_GT(calls, 100);
    } else if (WIFSIGNALED(status)) {
      ASSERT_EQ(WTERMSIG(status), SIGKILL);
      ++killed;
    } else {  // what goes to disk together differs a little
      ASSERT_EQ(WEXITSTATUS(status), 0) << "the writer gave up";
    }
    const auto memory = Memory::Open(folder, false);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    ExpectWhole(**memory, false, true);
    EXPECT_TRUE((*memory)->upkeep().Verify(false)->damage.empty());
    std::set<int64_t> nodes;
    const std::vector<GraphNode> there = (*memory)->graph().Nodes(NodeKind::kBlock).value();
    for (const GraphNode& node : there) nodes.insert(node.id);
    const std::vector<store::BlockInfo> blocks = (*memory)->blocks().Infos().value();
    for (const store::BlockInfo& block : blocks) {
      EXPECT_TRUE(block.id > tended || nodes.contains(block.id)) << "block " << block.id << " lost its node";
    }
    for (const int64_t id : forgotten) EXPECT_FALSE(nodes.contains(id)) << "block " << id << " came back";
    ASSERT_TRUE((*memory)->graph().Grow(kSmallTopics).ok());
    Tend(**memory);
    ExpectWhole(**memory, true, true);
  }
  EXPECT_GE(killed, places * 9 / 10);
  RecordProperty("calls", std::to_string(calls));
  RecordProperty("killed", std::to_string(killed));
}

}  // namespace
}  // namespace everlong::os
