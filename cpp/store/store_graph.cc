// The graph beside the blocks, kept in the catalog with the blocks' commits.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "writer.h"

namespace everlong::store {

Status MemoryStore::ChangeGraph(const GraphChange& change) {
  EVERLONG_RETURN_IF_ERROR(state_->CheckWritable());
  EVERLONG_RETURN_IF_ERROR(ValidateChange(change, false));
  state_->WaitForQueue();  // the change may name blocks that are on their way
  return Writer(*state_).catalog().ChangeGraph(change);
}

Result<Graph> MemoryStore::ReadGraph() const {
  state_->WaitForQueue();
  return state_->catalog().graph().ReadAll();
}

Result<GraphNode> MemoryStore::Node(int64_t id) const {
  state_->WaitForQueue();
  return state_->catalog().graph().Node(id);
}

Result<std::vector<GraphNode>> MemoryStore::Nodes(NodeKind kind) const {
  state_->WaitForQueue();
  return state_->catalog().graph().Nodes(kind);
}

Result<std::vector<int64_t>> MemoryStore::NodeIds(NodeKind kind) const {
  state_->WaitForQueue();
  return state_->catalog().graph().NodeIds(kind);
}

Result<std::vector<GraphEdge>> MemoryStore::EdgesOf(int64_t node) const {
  state_->WaitForQueue();
  return state_->catalog().graph().EdgesOf(node);
}

Status Writer::RestoreGraph(Graph graph) {
  GraphChange change;
  change.put_nodes = std::move(graph.nodes);
  change.put_edges = std::move(graph.edges);
  EVERLONG_RETURN_IF_ERROR(ValidateChange(change, false));
  return change.empty() ? OkStatus() : catalog().ChangeGraph(change);
}

}  // namespace everlong::store
