// How the graph of a memory grows: which vectors its blocks have, and when they get their nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/graph/memory_graph.h"
#include "everlong/kv/payload.h"
#include "everlong/store/memory_store.h"
#include "index_set.h"

namespace everlong::os {

// Thread-safe. Its hold is taken after the turn of the index and before its Read.
class GraphGrowth {
 public:
  // They outlive it.
  GraphGrowth(store::MemoryStore& store, const kv::PayloadLayout& layout, const Payloads& payloads, IndexSet& index)
      : store_(store), layout_(layout), payloads_(payloads), index_(index) {}

  // Grow a graph with these options from now on.
  Status SetOptions(graph::GraphOptions options);
  // Call BlockGraph::Tend.
  Result<int64_t> Tend(int32_t most_blocks);

  // Keep everybody else from the graph.
  [[nodiscard]] std::unique_lock<std::mutex> Hold() { return std::unique_lock(guard_); }
  // --- by the holder
  // Call MemoryStore::Forget, and mend the graph in the same commit.
  Status Forget(std::span<const int64_t> blocks);
  // Close the graph, because its nodes in the store may have changed.
  void Close() { graph_.reset(); }

 private:
  // Blocks that get their nodes next.
  struct Coming {
    std::vector<graph::NewBlock> blocks;
    std::vector<index::BlockEntry> entries;  // of `blocks`
    int64_t tended_to = 0;
  };

  // Open the stored graph for a change.
  Status Open();
  [[nodiscard]] bool by_keys() const { return graph_->options().space == "keys"; }
  [[nodiscard]] Coming Next(int32_t most_blocks) const;
  // Leave out blocks that the store does not have: a submitted block may yet be lost.
  Status KeepStored(Coming& coming) const;
  Status ReadKeyDirections(Coming& coming) const;

  store::MemoryStore& store_;
  const kv::PayloadLayout& layout_;
  const Payloads& payloads_;
  IndexSet& index_;
  std::mutex guard_;                            // guards the rest
  std::optional<graph::GraphOptions> options_;  // of a graph that grows
  std::unique_ptr<graph::MemoryGraph> graph_;   // opened when it is needed; closed when a change could not be stored
  int64_t tended_to_ = 0;                       // blocks up to this one have nodes, or get none
};

}  // namespace everlong::os
