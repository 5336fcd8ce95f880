// The graph of one memory: blocks in order of time, and above them the topics that the Gardener grows. It keeps the
// stored graph and the graph in RAM the same.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/graph/gardener.h"
#include "everlong/store/memory_store.h"

namespace everlong::graph {

// The manifest attribute that says that a memory has a graph, and in which space its vectors are.
inline constexpr const char* kGraphAttribute = "graph";

struct GraphOptions {
  // The space of the vectors, in one line: "keys", "encoder minilm" and so on. Vectors of another space or size cannot
  // be compared, so the graph is then grown anew. Empty: there are no vectors, only the chain through time.
  std::string space;
  GardenerOptions gardener;  // `dimension` counts only where there is a space
  bool operator==(const GraphOptions&) const = default;
};

// A block that has no node yet.
struct NewBlock {
  int64_t id = 0;
  int64_t previous = 0;  // the block before it in its stream; 0: none
  double created_at = 0;
  std::vector<float> vector;  // empty: the block has none
};

// Use it from one thread at a time, with a store that may be written to. After a change that could not be stored it
// must not be used again; open another.
class MemoryGraph {
 public:
  // Open the stored graph. It begins anew when there is none, when the graph is of another space, or when it is
  // inconsistent: a repair may have removed nodes. A new graph keeps the vectors of blocks, except those of another
  // space. The store must outlive it. kCorrupt when a row is damaged; a repair removes the row.
  static Result<std::unique_ptr<MemoryGraph>> Open(store::MemoryStore& store, const GraphOptions& options);
  // Open the stored graph with the options that it was grown with. kNotFound where there is none.
  static Result<std::unique_ptr<MemoryGraph>> OpenAsItIs(store::MemoryStore& store);

  ~MemoryGraph();
  MemoryGraph(const MemoryGraph&) = delete;
  MemoryGraph& operator=(const MemoryGraph&) = delete;

  [[nodiscard]] const GraphOptions& options() const { return options_; }
  [[nodiscard]] bool Has(int64_t block) const;  // whether the block has a node
  // Add nodes for blocks, in the order of their ids, and place them with the Gardener, in one commit. A block whose
  // vector cannot be placed, because its length is not finite, joins only the chain.
  Status Add(std::span<const NewBlock> blocks);
  // Remove blocks from the store and all sums, and join their neighbours, in one commit. Fails as MemoryStore::Forget.
  Status Forget(std::span<const int64_t> blocks);

  [[nodiscard]] const Gardener* gardener() const { return gardener_.get(); }  // nullptr without a space
  [[nodiscard]] int64_t bytes() const;                                        // of host memory, about

 private:
  MemoryGraph(store::MemoryStore& store, GraphOptions options);
  Status Load(bool fits);
  Status RestoreGardener();
  void NewGardener();
  // Place the blocks that have a node and a vector but no topic, when a graph is grown anew.
  Status PlaceTheRest();
  [[nodiscard]] Result<store::GraphChange> Stitch(std::span<const int64_t> forgotten) const;

  struct Known;
  store::MemoryStore& store_;
  GraphOptions options_;
  std::unique_ptr<Known> known_;
  std::unique_ptr<Gardener> gardener_;
};

}  // namespace everlong::graph
