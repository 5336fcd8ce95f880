// The graph beside the blocks, kept in the catalog with the blocks' commits.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "store.h"

namespace everlong::store {

Status Store::ChangeGraph(const GraphChange& change) {
  EVERLONG_RETURN_IF_ERROR(CheckWritable());
  EVERLONG_RETURN_IF_ERROR(ValidateChange(change, false));
  queue_->Wait();  // the change may name blocks that are on their way
  const std::scoped_lock lock(write_mutex_);
  return rooms_.catalog->graph().Change(change);
}

Result<Graph> Store::ReadGraph() const {
  if (queue_) queue_->Wait();
  return rooms_.catalog->graph().ReadAll();
}

Result<GraphNode> Store::Node(int64_t id) const {
  if (queue_) queue_->Wait();
  return rooms_.catalog->graph().Node(id);
}

Result<std::vector<GraphNode>> Store::Nodes(NodeKind kind) const {
  if (queue_) queue_->Wait();
  return rooms_.catalog->graph().Nodes(kind);
}

Result<std::vector<int64_t>> Store::NodeIds(NodeKind kind) const {
  if (queue_) queue_->Wait();
  return rooms_.catalog->graph().NodeIds(kind);
}

Result<std::vector<GraphEdge>> Store::EdgesOf(int64_t node) const {
  if (queue_) queue_->Wait();
  return rooms_.catalog->graph().EdgesOf(node);
}

Status Store::RestoreGraph(Graph graph) {
  GraphChange change;
  change.put_nodes = std::move(graph.nodes);
  change.put_edges = std::move(graph.edges);
  EVERLONG_RETURN_IF_ERROR(ValidateChange(change, false));
  const std::scoped_lock lock(write_mutex_);
  return change.empty() ? OkStatus() : rooms_.catalog->graph().Change(change);
}

}  // namespace everlong::store
