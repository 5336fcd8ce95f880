#include "everlong/store/graph.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "everlong/store/memory_store.h"

namespace everlong::store {
namespace {

Status Bad(const std::string& what) { return InvalidArgumentError("graph change: " + what); }

Status ValidateKey(const EdgeKey& edge, bool with_block) {
  const std::string name = "edge from " + std::to_string(edge.from) + " to " + std::to_string(edge.to);
  if (edge.kind < EdgeKind::kNext || edge.kind > EdgeKind::kBelongsTo) {
    return Bad(name + " is of kind " + std::to_string(static_cast<int32_t>(edge.kind)) + ", which does not exist");
  }
  const int64_t least = with_block ? kThisBlock : 1;
  return edge.from >= least && edge.to >= least ? OkStatus() : Bad(name + ": no node has such an id");
}

}  // namespace

Status ValidateNode(const GraphNode& node, bool with_block) {
  const std::string name = "node " + std::to_string(node.id);
  const bool is_block = node.kind == NodeKind::kBlock;
  if (!is_block && (node.kind < NodeKind::kTopic || node.kind > NodeKind::kEntity)) {
    return Bad(name + " is of kind " + std::to_string(static_cast<int32_t>(node.kind)) + ", which does not exist");
  }
  const bool fits = is_block ? node.id <= kLargestBlockId && (node.id > 0 || (node.id == kThisBlock && with_block))
                             : node.id > kLargestBlockId && node.id <= kLargestNodeId;
  if (!fits) {
    return Bad(name +
               (is_block ? " is a block's, which has no such id" : " is virtual and has an id that is a block's"));
  }
  if (node.level < 0) return Bad(name + ": level is " + std::to_string(node.level) + ", expected at least 0");
  if (node.count < 0) return Bad(name + ": count is " + std::to_string(node.count) + ", expected at least 0");
  if (std::max(std::ssize(node.vector), std::ssize(node.linear_sum)) > kMaxNodeDimensions) {
    return Bad(name + ": a vector has more than " + std::to_string(kMaxNodeDimensions) + " dimensions");
  }
  const auto is_finite = [](auto number) { return std::isfinite(number); };
  const bool finite = std::ranges::all_of(node.vector, is_finite) && std::ranges::all_of(node.linear_sum, is_finite) &&
                      std::isfinite(node.square_sum) && std::isfinite(node.created_at) &&
                      std::isfinite(node.updated_at);
  return finite ? OkStatus() : Bad(name + ": a number is not finite");
}

Status ValidateEdge(const GraphEdge& edge, bool with_block) {
  EVERLONG_RETURN_IF_ERROR(ValidateKey({edge.from, edge.to, edge.kind}, with_block));
  if (std::isfinite(edge.weight) && std::isfinite(edge.time)) return OkStatus();
  return Bad("edge from " + std::to_string(edge.from) + " to " + std::to_string(edge.to) + ": a number is not finite");
}

Status ValidateChange(const GraphChange& change, bool with_block) {
  for (const EdgeKey& edge : change.drop_edges) EVERLONG_RETURN_IF_ERROR(ValidateKey(edge, with_block));
  for (const int64_t id : change.drop_nodes) {
    if (id < 1) return Bad("no node has the id " + std::to_string(id));
  }
  for (const GraphNode& node : change.put_nodes) EVERLONG_RETURN_IF_ERROR(ValidateNode(node, with_block));
  for (const GraphEdge& edge : change.put_edges) EVERLONG_RETURN_IF_ERROR(ValidateEdge(edge, with_block));
  return OkStatus();
}

}  // namespace everlong::store
