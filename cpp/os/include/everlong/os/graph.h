// The graph over the blocks of a memory.
#pragma once

#include <cstdint>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/graph/gardener.h"
#include "everlong/graph/tag_tree.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

struct MemoryState;  // private

// Thread-safe: Tend runs beside searches and appends. It excludes Grow and Forget.
class BlockGraph {
 public:
  // Keep a graph over the blocks from now on (graph/memory_graph.h). Tend grows it. A block's node gets a vector of the
  // encoder where Indexes::SetPageVectors was called. Else it gets the direction of the sum of the block's un-rotated
  // keys of the last layer, or none. The Gardener grows topics over them; its `dimension` is not read. A graph with
  // vectors of another space is dropped. Durable on return. kInvalidArgument, kReadOnly.
  Status Grow(const graph::GardenerOptions& options);
  // Give at most so many blocks their nodes, the oldest without one first, in one commit, beside searches and appends.
  // Return how many: 0 once all have one, or wait for vectors of the encoder, and without Grow. Blocks::Forget keeps
  // the graph right anyway.
  Result<int64_t> Tend(int32_t most_blocks);
  // Return what the store has committed. kNotFound for an unknown node.
  [[nodiscard]] Result<store::Graph> Read() const;
  [[nodiscard]] Result<store::GraphNode> Node(int64_t id) const;
  [[nodiscard]] Result<std::vector<store::GraphNode>> Nodes(store::NodeKind kind) const;
  [[nodiscard]] Result<std::vector<store::GraphEdge>> EdgesOf(int64_t node) const;
  // Return the days of the Time -> Tag tree, and the sessions in them, which are streams.
  [[nodiscard]] std::vector<graph::TagTree::Bucket> TagBuckets() const;
  // Call graph::ShortestPath.
  [[nodiscard]] Result<std::vector<int64_t>> Path(int64_t from, int64_t to) const;

 private:
  friend class Memory;
  explicit BlockGraph(MemoryState& state) : state_(state) {}

  MemoryState& state_;  // of the memory, which outlives this
};

}  // namespace everlong::os
