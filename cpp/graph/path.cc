#include "everlong/graph/path.h"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace everlong::graph {

Result<std::vector<int64_t>> ShortestPath(const store::MemoryStore& store, int64_t from, int64_t to,
                                          int64_t most_nodes) {
  EVERLONG_RETURN_IF_ERROR(store.Node(from).status());
  EVERLONG_RETURN_IF_ERROR(store.Node(to).status());
  // Breadth first from the end. The way forward then takes the smallest id that is one edge nearer.
  std::unordered_map<int64_t, int64_t> next{{to, 0}};
  std::vector<int64_t> edge{to};
  while (!edge.empty() && !next.contains(from) && std::ssize(next) <= most_nodes) {
    std::vector<int64_t> farther;
    for (const int64_t id : edge) {  // ascending: the smallest id comes first
      EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::GraphEdge> edges, store.EdgesOf(id));
      for (const store::GraphEdge& of : edges) {
        const int64_t other = of.from == id ? of.to : of.from;
        if (next.try_emplace(other, id).second) farther.push_back(other);
      }
    }
    std::ranges::sort(farther);
    edge = std::move(farther);
  }
  std::vector<int64_t> path;
  if (!next.contains(from)) return path;
  for (int64_t id = from; id != 0; id = next.at(id)) path.push_back(id);
  return path;
}

}  // namespace everlong::graph
