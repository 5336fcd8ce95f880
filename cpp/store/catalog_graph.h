// The graph beside the blocks of a catalog.
#pragma once

#include <cstdint>
#include <vector>

#include "catalog_file.h"
#include "catalog_totals.h"
#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"

namespace everlong::store {

// Reads of it. A view of a catalog's file, as thread-safe as that. Before schema 2 there is no graph.
class CatalogGraph {
 public:
  explicit CatalogGraph(CatalogFile& file) : file_(file) {}

  // Read the graph as of one moment. `damage`, if given, gets what is damaged or has lost an end. That is then left
  // out, and `lost` says what to remove. Without `damage` it is kCorrupt.
  [[nodiscard]] Result<Graph> ReadAll(std::vector<Damage>* damage = nullptr, GraphChange* lost = nullptr) const;
  [[nodiscard]] Result<GraphNode> Node(int64_t id) const;
  [[nodiscard]] Result<std::vector<GraphNode>> Nodes(NodeKind kind) const;
  [[nodiscard]] Result<std::vector<int64_t>> NodeIds(NodeKind kind) const;
  [[nodiscard]] Result<std::vector<GraphEdge>> EdgesOf(int64_t node) const;

 private:
  CatalogFile& file_;
};

// Do a change in the caller's transaction. `block` is the id that kThisBlock stands for.
Status ApplyChange(Database& database, const GraphChange& change, ChangingTotals& totals, int64_t block = kThisBlock);
// Remove a node and its edges, in the caller's transaction.
Status DropNode(Database& database, int64_t id, ChangingTotals& totals);

}  // namespace everlong::store
