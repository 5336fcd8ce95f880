#include "everlong/os/graph.h"

#include <utility>

#include "everlong/graph/path.h"
#include "memory_state.h"

namespace everlong::os {

Status BlockGraph::Grow(const graph::GardenerOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.TurnToWrite());
  graph::GraphOptions wanted;
  wanted.gardener = options;
  if (state_.page_vectors) {
    wanted.space = "encoder " + state_.page_vectors->encoder;
    wanted.gardener.dimension = state_.page_vectors->dimension;
  } else if (!state_.text_alone()) {
    wanted.space = "keys";
    wanted.gardener.dimension = state_.layout.kv_heads * state_.layout.head_dim;
  } else {
    wanted.gardener.dimension = 1;  // there are no vectors
  }
  EVERLONG_RETURN_IF_ERROR(Validate(wanted.gardener));
  EVERLONG_RETURN_IF_ERROR(state_.Flush(writer));
  return state_.growth.SetOptions(std::move(wanted));
}

Result<int64_t> BlockGraph::Tend(int32_t most_blocks) { return state_.growth.Tend(most_blocks); }

std::vector<graph::TagTree::Bucket> BlockGraph::TagBuckets() const {
  const auto reading = state_.index.Read();
  return state_.tags.Buckets();
}

Result<store::Graph> BlockGraph::Read() const { return state_.store->ReadGraph(); }
Result<store::GraphNode> BlockGraph::Node(int64_t id) const { return state_.store->Node(id); }
Result<std::vector<store::GraphNode>> BlockGraph::Nodes(store::NodeKind kind) const {
  return state_.store->Nodes(kind);
}
Result<std::vector<store::GraphEdge>> BlockGraph::EdgesOf(int64_t node) const { return state_.store->EdgesOf(node); }
Result<std::vector<int64_t>> BlockGraph::Path(int64_t from, int64_t to) const {
  return graph::ShortestPath(*state_.store, from, to);
}

}  // namespace everlong::os
