// The graph of one memory: real nodes (blocks) in a chain through time, virtual nodes (topics) that the Gardener grows
// over them; what lies in the store and what is in RAM kept the same.
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

// The attribute of a memory's manifest that says it has a graph, and of what space its vectors are.
inline constexpr const char* kGraphAttribute = "graph";

struct GraphOptions {
  // What the vectors are: "keys", "encoder minilm" ... One line. Of another space, or size, no two are compared: the
  // graph is then grown anew. Empty: there are no vectors, and so nothing but the chain through time.
  std::string space;
  GardenerOptions gardener;  // its dimension counts only where there is a space
  bool operator==(const GraphOptions&) const = default;
};

// A block that has no node yet.
struct NewBlock {
  int64_t id = 0;
  int64_t previous = 0;  // the block before it in its stream; 0: none
  double created_at = 0;
  std::vector<float> vector;  // empty: it has none
};

// One thread at a time, over a store that may be written to. Where a change could not be stored this is of no use any
// more, and its caller opens another.
class MemoryGraph {
 public:
  // As the store has it. Where that has none, or one of another space, or one that does not hold together (a repair may
  // have taken nodes out), it begins anew with vectors that blocks have; of another space with nothing. The store
  // outlives it. kCorrupt when a row is damaged: a repair takes it out.
  static Result<std::unique_ptr<MemoryGraph>> Open(store::MemoryStore& store, const GraphOptions& options);
  // With the options that the store's graph was grown with. kNotFound where it has none.
  static Result<std::unique_ptr<MemoryGraph>> OpenAsItIs(store::MemoryStore& store);

  ~MemoryGraph();
  MemoryGraph(const MemoryGraph&) = delete;
  MemoryGraph& operator=(const MemoryGraph&) = delete;

  [[nodiscard]] const GraphOptions& options() const { return options_; }
  [[nodiscard]] bool Has(int64_t block) const;  // a node
  // Nodes of blocks in the order of their ids, and what the Gardener does with them: one commit. Those whose vector
  // cannot be had a place (its length is not finite) stay in the chain alone.
  Status Add(std::span<const NewBlock> blocks);
  // Blocks go from the store, and out of all sums in the same commit; those before and behind them are neighbours then.
  // As MemoryStore::Forget.
  Status Forget(std::span<const int64_t> blocks);

  [[nodiscard]] const Gardener* gardener() const { return gardener_.get(); }  // nullptr without a space
  [[nodiscard]] int64_t bytes() const;                                        // of host memory, about

 private:
  MemoryGraph(store::MemoryStore& store, GraphOptions options);
  Status Load(bool fits);
  Status RestoreGardener();
  void NewGardener();
  // Blocks with a node and a vector that belong to no topic: a graph that is grown anew.
  Status PlaceTheRest();
  [[nodiscard]] Result<store::GraphChange> Stitch(std::span<const int64_t> forgotten) const;

  struct Known;
  store::MemoryStore& store_;
  GraphOptions options_;
  std::unique_ptr<Known> known_;
  std::unique_ptr<Gardener> gardener_;
};

}  // namespace everlong::graph
