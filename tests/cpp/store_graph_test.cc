// The graph beside the blocks, and tensors of blocks: with the blocks' commits, forgotten, forked and compacted with
// them; and a long random life against plain maps.
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "store_fixture.h"

namespace everlong::store {
namespace {

enum class Place { kRam, kFolder };

int64_t AllOf(const std::map<std::string, int64_t>& bytes) {
  int64_t sum = 0;
  for (const auto& [name, some] : bytes) sum += some;
  return sum;
}

class StoreGraph : public StoreFolderTest, public testing::WithParamInterface<Place> {
 protected:
  void SetUp() override {
    auto store = MemoryStore::Create(Where(), TestManifest());
    ASSERT_OK(store.status());
    store_ = std::move(store).value();
  }
  [[nodiscard]] std::optional<std::filesystem::path> Where() const {
    return GetParam() == Place::kRam ? std::nullopt : std::optional(folder_);
  }

  std::unique_ptr<MemoryStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Places, StoreGraph, testing::Values(Place::kRam, Place::kFolder),
                         [](const auto& info) { return info.param == Place::kRam ? "Ram" : "Folder"; });

TEST_P(StoreGraph, TensorsAndGraphComeWithTheBlock) {
  const TestBlock block(1, 40);
  const int64_t id = AppendAll(*store_, block).value();
  ExpectStored(*store_, block, id);
  ExpectExtras(*store_, block, id);
  const StoreStats stats = store_->Stats().value();
  EXPECT_EQ(AllOf(stats.tensor_bytes), 42 + 4 * 40);
  EXPECT_EQ(stats.graph_nodes, 2);
  EXPECT_EQ(stats.graph_edges, 1);
  EXPECT_EQ(stats.payload_bytes, std::ssize(block.payload));  // kv alone, as ever
  EXPECT_EQ(store_->Nodes(NodeKind::kTopic)->size(), 1U);
  EXPECT_EQ(store_->Nodes(NodeKind::kBlock).value()[0].id, id);
  EXPECT_EQ(store_->NodeIds(NodeKind::kBlock).value(), std::vector<int64_t>{id});
  EXPECT_EQ(store_->NodeIds(NodeKind::kTopic).value(), std::vector<int64_t>{kTestTopic});
  EXPECT_TRUE(store_->NodeIds(NodeKind::kEntity)->empty());
  EXPECT_TRUE(store_->Nodes(NodeKind::kEntity)->empty());
  EXPECT_TRUE(store_->Verify(false)->damage.empty());
  EXPECT_EQ(store_->Verify(false)->nodes, 2);
  // Queued, copied when Submit returns, and read before anybody flushed.
  int64_t queued = 0;
  {
    const TestBlock gone(2, 20);
    std::vector<TensorView> tensors;
    queued = store_->Submit(gone.FullDraft(tensors)).value();
  }
  ExpectExtras(*store_, TestBlock(2, 20), queued);
}

TEST_P(StoreGraph, ABlockWithoutPayloadMayHaveTensors) {
  const TestBlock block(1, 40);
  std::vector<TensorView> tensors;
  BlockDraft draft = block.FullDraft(tensors);
  draft.payload = {};
  draft.page_bytes = {};
  const int64_t id = AppendTo(*store_, draft).value();
  EXPECT_EQ(store_->Block(id)->pages, 0);
  ExpectExtras(*store_, block, id);
  EXPECT_TRUE(store_->Tensors(AppendTo(*store_, TestBlock(2, 5).Draft()).value())->empty());
  EXPECT_EQ(store_->Tensors(99).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->ReadTensor(99, "x").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->ReadTensor(id, "x").status().code(), StatusCode::kNotFound);
}

TEST_P(StoreGraph, ForgettingTakesNodeEdgesAndTensorsWithIt) {
  const std::vector<TestBlock> blocks = {{1, 20}, {2, 30}, {3, 25}};
  for (const TestBlock& block : blocks) ASSERT_OK(AppendAll(*store_, block).status());
  GraphChange change;
  change.put_edges = {{1, 2, EdgeKind::kNext, 1, 5}, {2, 1, EdgeKind::kPrevious, 1, 5}, {2, 3, EdgeKind::kNext, 1, 6}};
  ASSERT_OK(store_->ChangeGraph(change));
  EXPECT_EQ(store_->EdgesOf(2)->size(), 4U);
  // What is left of the topic lands in the same commit.
  GraphNode topic = store_->Node(kTestTopic).value();
  topic.count = 2;
  GraphChange rest;
  rest.put_nodes = {topic, BlockNode(2)};
  rest.put_edges = {{2, kTestTopic, EdgeKind::kBelongsTo, 1, 0}};  // of a block that goes: left out
  EXPECT_EQ(store_->Forget(std::vector<int64_t>{2, 9}, rest).code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->Node(kTestTopic)->count, 3);
  ASSERT_OK(store_->Forget(std::vector<int64_t>{2}, rest));
  EXPECT_EQ(store_->Node(2).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(store_->EdgesOf(2)->empty());
  EXPECT_EQ(store_->Node(kTestTopic)->count, 2);
  EXPECT_EQ(store_->ReadGraph()->edges.size(), 2U);
  EXPECT_EQ(store_->Tensors(2).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store_->ReadTensor(2, "ids").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(AllOf(store_->Stats()->tensor_bytes), 2 * 42 + 4 * (20 + 25));
  ASSERT_OK(store_->Compact().status());
  EXPECT_TRUE(store_->Verify(false)->damage.empty());
  EXPECT_EQ(store_->ReadTensor(3, "ids")->bytes.size(), 100U);
}

TEST_P(StoreGraph, WhatNamesNothingIsLeftOut) {
  ASSERT_OK(AppendTo(*store_, TestBlock(1, 20).Draft()).status());
  GraphChange change;
  change.put_nodes = {BlockNode(1), BlockNode(2)};
  change.put_edges = {{1, 2, EdgeKind::kNext, 1, 0}, {2, 1, EdgeKind::kNext, 1, 0}, {1, 1, EdgeKind::kNext, 1, 0}};
  change.drop_nodes = {77};
  change.drop_edges = {{1, 77, EdgeKind::kNext}};
  ASSERT_OK(store_->ChangeGraph(change));
  EXPECT_EQ(store_->ReadGraph()->nodes.size(), 1U);
  EXPECT_EQ(store_->ReadGraph()->edges, (std::vector<GraphEdge>{{1, 1, EdgeKind::kNext, 1, 0}}));
  // A node that is put again keeps its edges; one that is dropped loses them.
  change = {};
  change.put_nodes = {BlockNode(1, {1, 2})};
  ASSERT_OK(store_->ChangeGraph(change));
  EXPECT_EQ(store_->ReadGraph()->edges.size(), 1U);
  change = {};
  change.drop_nodes = {1};
  ASSERT_OK(store_->ChangeGraph(change));
  EXPECT_EQ(store_->ReadGraph().value(), Graph());
}

TEST_P(StoreGraph, RefusesChangesThatNoGraphCanHave) {
  ASSERT_OK(AppendTo(*store_, TestBlock(1, 20).Draft()).status());
  const auto node = [&](const GraphNode& bad) {
    GraphChange change;
    change.put_nodes = {BlockNode(1), bad};
    const StatusCode alone = store_->ChangeGraph(change).code();
    EXPECT_EQ(store_->Forget(std::vector<int64_t>{}, change).code(), alone);
    const TestBlock block(1, 20);
    BlockDraft draft = block.Draft();
    draft.graph = change;
    if (bad.id != kThisBlock) {
      EXPECT_EQ(store_->Submit(draft).status().code(), alone);
    }
    return alone;
  };
  const auto edge = [&](const GraphEdge& bad) {
    GraphChange change;
    change.put_edges = {bad};
    return store_->ChangeGraph(change).code();
  };
  constexpr auto kBad = StatusCode::kInvalidArgument;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(node(BlockNode(kThisBlock)), kBad);  // of no block
  EXPECT_EQ(node(BlockNode(-1)), kBad);
  EXPECT_EQ(node(BlockNode(kTestTopic)), kBad);
  EXPECT_EQ(node({.id = 1, .kind = NodeKind::kTopic, .vector = {}, .linear_sum = {}}), kBad);
  EXPECT_EQ(node({.id = kTestTopic, .kind = static_cast<NodeKind>(5), .vector = {}, .linear_sum = {}}), kBad);
  EXPECT_EQ(node({.id = kTestTopic, .kind = static_cast<NodeKind>(0), .vector = {}, .linear_sum = {}}), kBad);
  EXPECT_EQ(node({.id = 1, .level = -1, .vector = {}, .linear_sum = {}}), kBad);
  EXPECT_EQ(node({.id = 1, .vector = {}, .count = -1, .linear_sum = {}}), kBad);
  EXPECT_EQ(node({.id = 1, .vector = {}, .linear_sum = {}, .square_sum = kNan}), kBad);
  EXPECT_EQ(node({.id = 1, .vector = {}, .linear_sum = {}, .created_at = kInfinite}), kBad);
  EXPECT_EQ(node({.id = 1, .vector = {}, .linear_sum = {}, .updated_at = kInfinite}), kBad);
  EXPECT_EQ(node(BlockNode(1, {static_cast<float>(kNan)})), kBad);
  EXPECT_EQ(node({.id = 1, .vector = {}, .linear_sum = {kInfinite}}), kBad);
  EXPECT_EQ(node(BlockNode(1, std::vector<float>(kMaxNodeDimensions + 1))), kBad);
  EXPECT_EQ(edge({0, 1, EdgeKind::kNext, 1, 0}), kBad);
  EXPECT_EQ(edge({1, -1, EdgeKind::kNext, 1, 0}), kBad);
  EXPECT_EQ(edge({1, 1, static_cast<EdgeKind>(4), 1, 0}), kBad);
  EXPECT_EQ(edge({1, 1, EdgeKind::kNext, kNan, 0}), kBad);
  EXPECT_EQ(edge({1, 1, EdgeKind::kNext, 1, kInfinite}), kBad);
  EXPECT_EQ(store_->ReadGraph().value(), Graph());
  EXPECT_EQ(store_->Blocks()->size(), 1U);
}

TEST_P(StoreGraph, TensorsFillTheBudgetOfAMemoryInRam) {
  if (GetParam() != Place::kRam) return;
  const TestBlock block(1, 20);
  const std::vector<std::byte> many(28 * 1024);
  const TensorView little{"x", "U8", {100}, std::span(many).first(100)};
  const auto roomy = MemoryStore::Create(std::nullopt, TestManifest()).value();
  ASSERT_OK(roomy->Submit(block.Draft()).status());
  ASSERT_OK(roomy->PutTensors(1, {&little, 1}));
  const int64_t budget = roomy->Stats()->host_bytes + 16 * 1024;
  const auto small = MemoryStore::Create(std::nullopt, TestManifest(), {.host_bytes = budget}).value();
  BlockDraft draft = block.Draft();
  ASSERT_OK(small->Submit(draft).status());  // two records of 8 KiB
  const TensorView tensor{"x", "U8", {std::ssize(many)}, many};
  EXPECT_EQ(small->PutTensors(1, {&tensor, 1}).code(), StatusCode::kCapacity);
  draft.tensors = {&tensor, 1};
  EXPECT_EQ(small->Submit(draft).status().code(), StatusCode::kCapacity);
  EXPECT_EQ(small->Blocks()->size(), 1U);
  EXPECT_TRUE(small->Tensors(1)->empty());
  ASSERT_OK(small->PutTensors(1, {&little, 1}));
  // What is replaced makes room for what comes.
  for (int i = 0; i < 5; ++i) ASSERT_OK(small->PutTensors(1, {&little, 1}));
  ASSERT_OK(small->Forget(std::vector<int64_t>{1}));
  EXPECT_EQ(PayloadInRam(*small), 0);
}

// --- a random life, against plain maps

struct ModelBlock {
  TestBlock block;
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<std::byte>>> tensors;  // U8
};

struct Model {
  std::map<int64_t, ModelBlock> blocks;
  std::map<int64_t, GraphNode> nodes;
  std::map<std::tuple<int64_t, int64_t, EdgeKind>, GraphEdge> edges;
  int64_t given = 0;

  void DropNode(int64_t id) {
    nodes.erase(id);
    std::erase_if(edges, [id](const auto& edge) { return edge.second.from == id || edge.second.to == id; });
  }
  void Apply(const GraphChange& change, int64_t block) {
    const auto id_of = [block](int64_t id) { return id == kThisBlock ? block : id; };
    for (const EdgeKey& edge : change.drop_edges) edges.erase({edge.from, edge.to, edge.kind});
    for (const int64_t id : change.drop_nodes) DropNode(id);
    for (GraphNode node : change.put_nodes) {
      node.id = id_of(node.id);
      if (node.kind != NodeKind::kBlock || blocks.contains(node.id)) nodes[node.id] = node;
    }
    for (GraphEdge edge : change.put_edges) {
      edge.from = id_of(edge.from);
      edge.to = id_of(edge.to);
      if (nodes.contains(edge.from) && nodes.contains(edge.to)) edges[{edge.from, edge.to, edge.kind}] = edge;
    }
  }
};

class RandomLife {
 public:
  RandomLife(uint64_t seed, std::filesystem::path root, bool in_folder) : random_(seed), root_(std::move(root)) {
    std::filesystem::create_directories(root_);
    if (in_folder) folder_ = root_ / "m0";
    store_ = MemoryStore::Create(folder_, TestManifest(), kOptions).value();
  }

  void Step() {
    using Steps = void (RandomLife::*)();
    constexpr Steps kSteps[] = {
        &RandomLife::Append,  &RandomLife::Append, &RandomLife::Append,          &RandomLife::Append,
        &RandomLife::Put,     &RandomLife::Put,    &RandomLife::Change,          &RandomLife::Forget,
        &RandomLife::Compact, &RandomLife::Fork,   &RandomLife::ExportAndImport, &RandomLife::Reopen};
    (this->*kSteps[Draw(std::ssize(kSteps))])();
  }

  void ExpectSame() {
    std::vector<int64_t> ids;
    const std::vector<BlockInfo> blocks = store_->Blocks().value();
    for (const BlockInfo& info : blocks) ids.push_back(info.id);
    std::vector<int64_t> expected;
    int64_t bytes = 0;
    for (const auto& [id, block] : model_.blocks) {
      expected.push_back(id);
      ExpectStored(*store_, block.block, id);
      const Result<std::vector<TensorInfo>> infos = store_->Tensors(id);
      ASSERT_OK(infos.status());
      ASSERT_EQ(infos->size(), block.tensors.size());
      size_t at = 0;
      for (const auto& [name, tensor] : block.tensors) {
        EXPECT_EQ((*infos)[at++], (TensorInfo{name, "U8", tensor.first, std::ssize(tensor.second)}));
        const Result<Tensor> read = store_->ReadTensor(id, name);
        ASSERT_OK(read.status());
        EXPECT_TRUE(read->bytes == tensor.second) << name << " of block " << id;
        bytes += std::ssize(tensor.second);
      }
    }
    EXPECT_EQ(ids, expected);
    Graph graph;
    for (const auto& [id, node] : model_.nodes) graph.nodes.push_back(node);
    for (const auto& [key, edge] : model_.edges) graph.edges.push_back(edge);
    EXPECT_EQ(store_->ReadGraph().value(), graph);
    const StoreStats stats = store_->Stats().value();
    EXPECT_EQ(AllOf(stats.tensor_bytes), bytes);
    EXPECT_EQ(stats.graph_nodes, std::ssize(graph.nodes));
    EXPECT_EQ(stats.graph_edges, std::ssize(graph.edges));
    for (int i = 0; i < 3; ++i) {
      const int64_t id = AnyNode();
      std::vector<GraphEdge> edges = graph.edges;
      std::erase_if(edges, [id](const GraphEdge& edge) { return edge.from != id && edge.to != id; });
      EXPECT_EQ(store_->EdgesOf(id).value(), edges);
      EXPECT_EQ(store_->Node(id).ok(), model_.nodes.contains(id));
    }
    ExpectUndamaged(*store_);
  }

 private:
  static constexpr StoreOptions kOptions{.segment_bytes = 100 * 1024, .host_bytes = int64_t{1} << 30};

  int64_t Draw(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  double Number() { return static_cast<double>(Draw(1000)) / 7 - 60; }
  int64_t AnyNode() { return Draw(2) == 0 ? kTestTopic + Draw(4) : 1 + Draw(model_.given + 2); }

  GraphChange AnyChange(bool with_block) {
    GraphChange change;
    const auto any = [&] { return with_block && Draw(2) == 0 ? kThisBlock : AnyNode(); };
    for (int64_t i = Draw(3); i > 0; --i) {
      change.drop_edges.push_back({AnyNode(), AnyNode(), static_cast<EdgeKind>(1 + Draw(3))});
    }
    if (Draw(3) == 0) change.drop_nodes.push_back(AnyNode());
    for (int64_t i = Draw(4); i > 0; --i) {
      GraphNode node;
      node.id = any();
      node.kind = node.id > kLargestBlockId ? static_cast<NodeKind>(2 + Draw(3)) : NodeKind::kBlock;
      node.level = static_cast<int32_t>(Draw(4));
      for (int64_t d = Draw(5); d > 0; --d) node.vector.push_back(static_cast<float>(Number()));
      node.count = Draw(100);
      for (int64_t d = Draw(5); d > 0; --d) node.linear_sum.push_back(Number());
      node.square_sum = Number();
      node.created_at = Number();
      node.updated_at = Number();
      change.put_nodes.push_back(node);
    }
    for (int64_t i = Draw(5); i > 0; --i) {
      change.put_edges.push_back({any(), any(), static_cast<EdgeKind>(1 + Draw(3)), Number(), Number()});
    }
    return change;
  }

  // Tensors "t0" ... some of them, as views of what goes into `held`.
  std::vector<TensorView> AnyTensors(decltype(ModelBlock::tensors)& held) {
    decltype(ModelBlock::tensors) drawn;
    for (int64_t i = Draw(4); i > 0; --i) {
      const std::vector<int64_t> shape = {Draw(50), 1 + Draw(200)};
      std::vector<std::byte> bytes(static_cast<size_t>(shape[0] * shape[1]));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
      drawn.insert_or_assign("t" + std::to_string(Draw(5)), std::pair(shape, std::move(bytes)));
    }
    std::vector<TensorView> views;
    for (auto& [name, tensor] : drawn) {
      auto& put = held[name] = std::move(tensor);
      views.push_back({name, "U8", put.first, put.second});
    }
    return views;
  }

  void Append() {
    ModelBlock added{TestBlock(random_(), 2 + Draw(50), 1000 * model_.given), {}};
    BlockDraft draft = added.block.Draft();
    const std::vector<TensorView> views = AnyTensors(added.tensors);
    draft.tensors = views;
    draft.graph = AnyChange(true);
    const Result<int64_t> id = store_->Submit(draft);
    ASSERT_OK(id.status());
    ASSERT_EQ(*id, ++model_.given);
    model_.blocks.emplace(*id, std::move(added));
    model_.Apply(draft.graph, *id);
  }

  std::optional<int64_t> AnyBlock() {
    if (model_.blocks.empty()) return std::nullopt;
    return std::next(model_.blocks.begin(), Draw(std::ssize(model_.blocks)))->first;
  }

  void Put() {
    const std::optional<int64_t> id = AnyBlock();
    if (!id) return;
    ASSERT_OK(store_->PutTensors(*id, AnyTensors(model_.blocks.at(*id).tensors)));
  }

  void Change() {
    const GraphChange change = AnyChange(false);
    ASSERT_OK(store_->ChangeGraph(change));
    model_.Apply(change, kThisBlock);
  }

  void Forget() {
    const std::optional<int64_t> id = AnyBlock();
    if (!id) return;
    const GraphChange change = AnyChange(false);
    ASSERT_OK(store_->Forget(std::vector<int64_t>{*id}, change));
    model_.blocks.erase(*id);
    model_.DropNode(*id);
    model_.Apply(change, kThisBlock);
  }

  void Compact() { ASSERT_OK(store_->Compact().status()); }

  std::filesystem::path NewPath() { return root_ / ("m" + std::to_string(++made_)); }

  void Fork() {
    const std::filesystem::path folder = NewPath();
    ASSERT_OK(store_->Fork(folder, {}));
    folder_ = folder;
    Reopen();
  }

  void ExportAndImport() {
    const std::filesystem::path file = NewPath();
    ASSERT_OK(store_->Export(file));
    if (folder_) folder_ = NewPath();
    auto imported = MemoryStore::Import(file, folder_, kOptions);
    ASSERT_OK(imported.status());
    store_ = std::move(imported).value();
  }

  void Reopen() {
    if (!folder_) return;
    store_.reset();
    auto opened = MemoryStore::Open(*folder_, false, kOptions);
    ASSERT_OK(opened.status());
    store_ = std::move(opened).value();
  }

  std::mt19937_64 random_;
  std::filesystem::path root_;
  std::optional<std::filesystem::path> folder_;
  std::unique_ptr<MemoryStore> store_;
  Model model_;
  int made_ = 0;
};

TEST_P(StoreGraph, ALongRandomLife) {
  for (int life = 0; life < CampaignSize("LIVES", 4) && !HasFatalFailure(); ++life) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomLife random_life(seed, root_ / std::to_string(life), GetParam() == Place::kFolder);
    for (int step = 0; step < 60 && !HasFatalFailure(); ++step) {
      random_life.Step();
      if (step % 6 == 5) random_life.ExpectSame();
    }
  }
}

}  // namespace
}  // namespace everlong::store
