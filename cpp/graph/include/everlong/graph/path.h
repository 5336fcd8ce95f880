// Paths through a memory's graph.
#pragma once

#include <cstdint>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"

namespace everlong::graph {

// Return the nodes of a path with the fewest edges, of any kind and in either direction. Of several such paths it takes
// the one with the smallest ids. Empty when there is no path, or when the search visited more than `most_nodes` nodes
// without finding one. kNotFound when a node does not exist. It reads the store. Thread-safe.
Result<std::vector<int64_t>> ShortestPath(const store::MemoryStore& store, int64_t from, int64_t to,
                                          int64_t most_nodes = int64_t{1} << 20);

}  // namespace everlong::graph
