// The graph that a memory keeps beside its blocks. Nodes are the blocks, and virtual ones: centres with their sums,
// times, entities. Edges lie between them. The store keeps the graph with its blocks, in the same commits, checksums
// and copies. It knows nothing of what the graph means.
#pragma once

#include <cstdint>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::store {

enum class NodeKind : int32_t {
  kBlock = 1,  // a block; the other kinds are virtual
  kTopic = 2,
  kTimeline = 3,
  kEntity = 4,
};

enum class EdgeKind : int32_t {
  kNext = 1,      // in time
  kPrevious = 2,  // in time
  kBelongsTo = 3,
};

// In a change that comes with a block without an id yet: that block's node.
inline constexpr int64_t kThisBlock = 0;
// A block's node has the block's id. The caller chooses ids of virtual nodes above kLargestBlockId (memory_store.h).
struct GraphNode {
  int64_t id = 0;
  NodeKind kind = NodeKind::kBlock;
  int32_t level = 0;          // in the hierarchy, from 0
  std::vector<float> vector;  // of the space that the caller compares in; may be empty
  int64_t count = 0;          // members of a centre; then the sum of their vectors, and of their squared lengths
  std::vector<double> linear_sum;
  double square_sum = 0;
  double created_at = 0;  // seconds since 1970, UTC
  double updated_at = 0;
  bool operator==(const GraphNode&) const = default;
};

// There is at most one edge of each kind from one node to another.
struct GraphEdge {
  int64_t from = 0;
  int64_t to = 0;
  EdgeKind kind = EdgeKind::kNext;
  double weight = 0;
  double time = 0;  // seconds since 1970, UTC
  bool operator==(const GraphEdge&) const = default;
};

struct EdgeKey {
  int64_t from = 0;
  int64_t to = 0;
  EdgeKind kind = EdgeKind::kNext;
  bool operator==(const EdgeKey&) const = default;
};

// Nodes are in order of id; edges of from, to, kind.
struct Graph {
  std::vector<GraphNode> nodes;
  std::vector<GraphEdge> edges;
  bool operator==(const Graph&) const = default;
};

// A change is done in the order of its members, all or none. Entries that name an unknown or forgotten block or node
// are left out: a block may be forgotten while a change that names it is on its way.
struct GraphChange {
  std::vector<EdgeKey> drop_edges;
  std::vector<int64_t> drop_nodes;   // and their edges
  std::vector<GraphNode> put_nodes;  // each replaces the node of its id; its edges stay
  std::vector<GraphEdge> put_edges;  // each replaces the edge of its ends and kind

  [[nodiscard]] bool empty() const {
    return drop_edges.empty() && drop_nodes.empty() && put_nodes.empty() && put_edges.empty();
  }
};

inline constexpr int64_t kLargestNodeId = int64_t{1} << 62;
inline constexpr int64_t kMaxNodeDimensions = int64_t{1} << 16;  // of a vector, and of a linear sum

// Return kInvalidArgument that names what no graph can have. That is an id that does not fit its kind, an unknown kind,
// a number that is not finite, a negative count or level, a vector too long, or kThisBlock without `with_block`.
Status ValidateChange(const GraphChange& change, bool with_block);
// The same for what is stored. A node or an edge that comes from disk is checked like one that comes from a caller.
Status ValidateNode(const GraphNode& node, bool with_block = false);
Status ValidateEdge(const GraphEdge& edge, bool with_block = false);

}  // namespace everlong::store
