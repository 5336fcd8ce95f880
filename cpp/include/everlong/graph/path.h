// Ways through a memory's graph.
#pragma once

#include <cstdint>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"

namespace everlong::graph {

// Nodes from one to another over the fewest edges of any kind, taken in either direction; of several such ways that
// with the smallest ids. Empty where there is none, or none over at most `most_nodes` nodes that were looked at.
// kNotFound for a node that is not there. Reads the store; thread-safe.
Result<std::vector<int64_t>> ShortestPath(const store::MemoryStore& store, int64_t from, int64_t to,
                                          int64_t most_nodes = int64_t{1} << 20);

}  // namespace everlong::graph
