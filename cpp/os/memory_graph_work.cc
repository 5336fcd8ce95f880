// The graph of a memory: which vectors its blocks have, and when they get their nodes.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "block_reader.h"
#include "everlong/graph/path.h"
#include "memory_state.h"

namespace everlong::os {
namespace {

// Return the vector at unit length; empty where it has no direction.
std::vector<float> DirectionOf(std::span<const float> vector) {
  double square = 0;
  for (const float value : vector) square += double{value} * double{value};
  if (!(square > 0) || !std::isfinite(square)) return {};
  std::vector<float> direction;
  direction.reserve(vector.size());
  const double length = std::sqrt(square);
  for (const float value : vector) direction.push_back(static_cast<float>(double{value} / length));
  return direction;
}

}  // namespace

Status Memory::State::OpenGraph() {
  if (graph != nullptr) return OkStatus();
  if (graph_options) {
    EVERLONG_ASSIGN_OR_RETURN(graph, graph::MemoryGraph::Open(*store, *graph_options));
  } else {
    EVERLONG_ASSIGN_OR_RETURN(graph, graph::MemoryGraph::OpenAsItIs(*store));
  }
  tended_to = 0;
  return OkStatus();
}

Status Memory::State::ForgetFromStore(std::span<const int64_t> blocks) {
  // A damaged or missing graph must not keep anybody from forgetting. It is grown anew when it is next opened.
  if (OpenGraph().ok()) {
    const Status forgotten = graph->Forget(blocks);
    if (forgotten.ok()) return forgotten;
    graph.reset();
    const auto is_there = [this](int64_t id) { return store->Block(id).ok(); };
    if (forgotten.code() != StatusCode::kCorrupt || !std::ranges::all_of(blocks, is_there)) return forgotten;
  }
  return store->Forget(blocks);
}

Status Memory::SetGraph(const graph::GardenerOptions& options) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  if (s.store->read_only()) return ReadOnlyError("the memory was opened for reading");
  graph::GraphOptions wanted;
  wanted.gardener = options;
  if (s.page_vectors) {
    wanted.space = "encoder " + s.page_vectors->encoder;
    wanted.gardener.dimension = s.page_vectors->dimension;
  } else if (!s.text_alone()) {
    wanted.space = "keys";
    wanted.gardener.dimension = s.layout.kv_heads * s.layout.head_dim;
  } else {
    wanted.gardener.dimension = 1;  // there are no vectors
  }
  EVERLONG_RETURN_IF_ERROR(Validate(wanted.gardener));
  EVERLONG_RETURN_IF_ERROR(s.Flush());
  const std::scoped_lock growing(s.graph_guard);
  if (s.graph_options == wanted) return OkStatus();
  s.graph.reset();
  s.graph_options = std::move(wanted);
  const Status opened = s.OpenGraph();
  if (!opened.ok()) s.graph_options.reset();
  return opened;
}

Result<int64_t> Memory::TendGraph(int32_t most_blocks) {
  State& s = *state_;
  if (most_blocks < 1) {
    return InvalidArgumentError("most_blocks is " + std::to_string(most_blocks) + ", expected at least 1");
  }
  const std::scoped_lock growing(s.graph_guard);
  if (!s.graph_options) return 0;
  EVERLONG_RETURN_IF_ERROR(s.OpenGraph());
  const bool by_keys = s.graph->options().space == "keys";
  const bool by_encoder = !by_keys && !s.graph->options().space.empty();
  std::vector<index::BlockEntry> entries;
  std::vector<graph::NewBlock> blocks;
  int64_t tended_to = s.tended_to;
  {
    const auto reading = s.index.Read();
    const index::BlockTable& table = s.index.table();
    const index::Part* const encoded = s.index.part(index::IndexPart::kEmbedding);
    // Ids ascend with numbers.
    int32_t number = 0;
    for (int32_t beyond = table.blocks(); number < beyond;) {
      const int32_t middle = number + (beyond - number) / 2;
      (table.block(middle).id <= tended_to ? number : beyond) =
          table.block(middle).id <= tended_to ? middle + 1 : middle;
    }
    for (; number < table.blocks() && std::ssize(blocks) < most_blocks; ++number) {
      const index::BlockEntry& block = table.block(number);
      if (!block.forgotten && !s.graph->Has(block.id)) {
        graph::NewBlock coming{block.id, 0, block.created_at, {}};
        if (by_encoder) {
          if (encoded == nullptr || !encoded->Has(block)) break;  // the encoder goes in the same order
          coming.vector = DirectionOf(encoded->BlockVector(block));
        }
        const auto before = table.RecentBlocks(block.stream, block.span.begin, 1, {});
        if (!before.empty()) coming.previous = before[0]->id;
        entries.push_back(block);
        blocks.push_back(std::move(coming));
      }
      tended_to = block.id;
    }
  }
  // A submitted block may yet be lost. Then it gets no node.
  std::vector<graph::NewBlock> stored;
  std::vector<const index::BlockEntry*> read;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Status there = s.store->Block(blocks[i].id).status();
    if (there.code() == StatusCode::kNotFound) continue;
    EVERLONG_RETURN_IF_ERROR(there);
    stored.push_back(std::move(blocks[i]));
    read.push_back(&entries[i]);
  }
  if (by_keys && !stored.empty()) {
    index::PartNeeds needs;
    needs.key_sum = true;
    std::vector<Status> damaged;
    size_t next = 0;
    EVERLONG_RETURN_IF_ERROR(BlockReader(*s.store, s.layout)
                                 .Visit(
                                     read, needs,
                                     [&](const index::BlockEntry& /*block*/, const DecodedBlock& decoded) {
                                       stored[next++].vector = DirectionOf(decoded.key_sum);
                                       return OkStatus();
                                     },
                                     damaged));
  }
  if (const Status added = s.graph->Add(stored); !added.ok()) {
    s.graph.reset();
    return added;
  }
  s.tended_to = tended_to;
  s.index.SetBytesBeside(s.graph->bytes());
  return std::ssize(blocks);
}

Result<store::Graph> Memory::Graph() const { return state_->store->ReadGraph(); }
Result<store::GraphNode> Memory::Node(int64_t id) const { return state_->store->Node(id); }
Result<std::vector<store::GraphNode>> Memory::Nodes(store::NodeKind kind) const { return state_->store->Nodes(kind); }
Result<std::vector<store::GraphEdge>> Memory::EdgesOf(int64_t node) const { return state_->store->EdgesOf(node); }
Result<std::vector<int64_t>> Memory::Path(int64_t from, int64_t to) const {
  return graph::ShortestPath(*state_->store, from, to);
}

}  // namespace everlong::os
