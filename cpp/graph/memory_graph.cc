#include "everlong/graph/memory_graph.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

namespace everlong::graph {
namespace {

using store::EdgeKind;
using store::GraphChange;
using store::GraphEdge;
using store::GraphNode;
using store::NodeKind;

// How many blocks one commit takes when a graph is grown anew.
constexpr size_t kAtOnce = 1024;

// The settings that a graph cannot change: its space, the size of its vectors, its levels.
std::string Settings(const GraphOptions& options) {
  if (options.space.empty()) return "time";
  return options.space + "\n" + std::to_string(options.gardener.dimension) + " " +
         std::to_string(options.gardener.levels);
}

std::optional<GraphOptions> ParseSettings(const std::string& settings) {
  GraphOptions options;
  if (settings == "time") return options;
  const size_t end = settings.rfind('\n');
  if (end == std::string::npos) return std::nullopt;
  options.space = settings.substr(0, end);
  const char* const last = settings.data() + settings.size();
  const auto dimension = std::from_chars(settings.data() + end + 1, last, options.gardener.dimension);
  if (dimension.ec != std::errc() || dimension.ptr == last) return std::nullopt;
  const auto levels = std::from_chars(dimension.ptr + 1, last, options.gardener.levels);
  if (levels.ec != std::errc() || !Validate(options.gardener).ok() || Settings(options) != settings) {
    return std::nullopt;
  }
  return options;
}

std::optional<std::string> SettingsOf(const store::MemoryStore& store) {
  const store::Manifest manifest = store.manifest();
  const auto found = manifest.attributes.find(kGraphAttribute);
  return found == manifest.attributes.end() ? std::nullopt : std::optional(found->second);
}

void Append(GraphChange& to, GraphChange&& more) {
  const auto append = [](auto& into, auto& from) { std::ranges::move(from, std::back_inserter(into)); };
  append(to.drop_edges, more.drop_edges);
  append(to.drop_nodes, more.drop_nodes);
  append(to.put_nodes, more.put_nodes);
  append(to.put_edges, more.put_edges);
}

}  // namespace

// Blocks that have a node, and vectors of those that are on their way into the store.
struct MemoryGraph::Known {
  std::unordered_set<int64_t> blocks;
  std::map<int64_t, std::vector<float>> coming;
};

MemoryGraph::MemoryGraph(store::MemoryStore& store, GraphOptions options)
    : store_(store), options_(std::move(options)), known_(std::make_unique<Known>()) {}

MemoryGraph::~MemoryGraph() = default;

Result<std::unique_ptr<MemoryGraph>> MemoryGraph::Open(store::MemoryStore& store, const GraphOptions& options) {
  if (!options.space.empty()) EVERLONG_RETURN_IF_ERROR(Validate(options.gardener));
  std::unique_ptr<MemoryGraph> graph(new MemoryGraph(store, options));
  const std::optional<std::string> there = SettingsOf(store);
  EVERLONG_RETURN_IF_ERROR(graph->Load(there == Settings(options)));
  return graph;
}

Result<std::unique_ptr<MemoryGraph>> MemoryGraph::OpenAsItIs(store::MemoryStore& store) {
  const std::optional<std::string> there = SettingsOf(store);
  if (!there) return NotFoundError("the memory has no graph");
  const std::optional<GraphOptions> options = ParseSettings(*there);
  if (!options) return CorruptError("the memory's attribute \"" + std::string(kGraphAttribute) + "\" is damaged");
  return Open(store, *options);
}

void MemoryGraph::NewGardener() {
  gardener_ = std::make_unique<Gardener>(options_.gardener, [this](int64_t block) -> Result<std::vector<float>> {
    const auto coming = known_->coming.find(block);
    if (coming != known_->coming.end()) return coming->second;
    EVERLONG_ASSIGN_OR_RETURN(GraphNode node, store_.Node(block));
    return std::move(node.vector);
  });
}

Status MemoryGraph::Load(bool fits) {
  if (!fits) {
    // Vectors of another space are useless. The chain through time is made again with the nodes.
    GraphChange change;
    for (const NodeKind kind : {NodeKind::kBlock, NodeKind::kTopic}) {
      EVERLONG_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, store_.NodeIds(kind));
      change.drop_nodes.insert(change.drop_nodes.end(), ids.begin(), ids.end());
    }
    if (!change.empty()) EVERLONG_RETURN_IF_ERROR(store_.ChangeGraph(change));
    EVERLONG_RETURN_IF_ERROR(store_.SetAttribute(kGraphAttribute, Settings(options_)));
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<int64_t> blocks, store_.NodeIds(NodeKind::kBlock));
  known_->blocks.insert(blocks.begin(), blocks.end());
  return options_.space.empty() ? OkStatus() : RestoreGardener();
}

Status MemoryGraph::RestoreGardener() {
  NewGardener();
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<GraphNode> topics, store_.Nodes(NodeKind::kTopic));
  std::vector<GraphEdge> belongs;
  for (const GraphNode& topic : topics) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<GraphEdge> edges, store_.EdgesOf(topic.id));
    std::ranges::copy_if(edges, std::back_inserter(belongs), [&topic](const GraphEdge& edge) {
      return edge.to == topic.id && edge.kind == EdgeKind::kBelongsTo;
    });
  }
  Status restored = gardener_->Restore(topics, belongs);
  if (restored.ok()) return PlaceTheRest();
  if (restored.code() != StatusCode::kCorrupt) return restored;
  GraphChange change;
  for (const GraphNode& topic : topics) change.drop_nodes.push_back(topic.id);
  EVERLONG_RETURN_IF_ERROR(store_.ChangeGraph(change));
  NewGardener();
  return PlaceTheRest();
}

Status MemoryGraph::PlaceTheRest() {
  std::vector<int64_t> rest;
  for (const int64_t block : known_->blocks) {
    if (!gardener_->Has(block)) rest.push_back(block);
  }
  std::ranges::sort(rest);
  for (size_t i = 0; i < rest.size(); ++i) {
    EVERLONG_ASSIGN_OR_RETURN(const GraphNode node, store_.Node(rest[i]));
    if (!node.vector.empty()) EVERLONG_RETURN_IF_ERROR(gardener_->Add(node.id, node.vector, node.created_at));
    if ((i + 1) % kAtOnce != 0 && i + 1 < rest.size()) continue;
    const GraphChange change = gardener_->TakeChange();
    if (!change.empty()) EVERLONG_RETURN_IF_ERROR(store_.ChangeGraph(change));
  }
  return OkStatus();
}

bool MemoryGraph::Has(int64_t block) const { return known_->blocks.contains(block); }

Status MemoryGraph::Add(std::span<const NewBlock> blocks) {
  GraphChange change;
  for (const NewBlock& block : blocks) {
    if (Has(block.id)) return AlreadyExistsError("block " + std::to_string(block.id) + " has a node");
    GraphNode node;
    node.id = block.id;
    node.created_at = block.created_at;
    node.updated_at = block.created_at;
    if (gardener_ != nullptr && !block.vector.empty()) {
      known_->coming[block.id] = block.vector;
      const Status placed = gardener_->Add(block.id, block.vector, block.created_at);
      if (placed.ok()) {
        node.vector = block.vector;
      } else if (placed.code() != StatusCode::kInvalidArgument) {
        known_->coming.clear();
        return placed;
      }
    }
    change.put_nodes.push_back(std::move(node));
    known_->blocks.insert(block.id);
    if (block.previous == 0 || !Has(block.previous)) continue;
    change.put_edges.push_back({block.previous, block.id, EdgeKind::kNext, 1, block.created_at});
    change.put_edges.push_back({block.id, block.previous, EdgeKind::kPrevious, 1, block.created_at});
  }
  if (gardener_ != nullptr) Append(change, gardener_->TakeChange());
  known_->coming.clear();
  return change.empty() ? OkStatus() : store_.ChangeGraph(change);
}

Status MemoryGraph::Forget(std::span<const int64_t> blocks) {
  for (const int64_t block : blocks) {
    EVERLONG_RETURN_IF_ERROR(store_.Block(block).status());  // before the sums change
  }
  EVERLONG_ASSIGN_OR_RETURN(GraphChange change, Stitch(blocks));
  for (const int64_t block : blocks) {
    known_->blocks.erase(block);
    if (gardener_ != nullptr && gardener_->Has(block)) EVERLONG_RETURN_IF_ERROR(gardener_->Forget(block));
  }
  if (gardener_ != nullptr) Append(change, gardener_->TakeChange());
  return store_.Forget(blocks, change);
}

Result<GraphChange> MemoryGraph::Stitch(std::span<const int64_t> forgotten) const {
  const std::set<int64_t> gone(forgotten.begin(), forgotten.end());
  std::map<int64_t, GraphEdge> next;  // of the forgotten blocks, and of those before them
  for (const int64_t block : gone) {
    if (!Has(block)) continue;
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<GraphEdge> edges, store_.EdgesOf(block));
    for (const GraphEdge& edge : edges) {
      if (edge.kind == EdgeKind::kNext) next[edge.from] = edge;
    }
  }
  GraphChange change;
  for (const auto& [from, edge] : next) {
    if (gone.contains(from)) continue;
    GraphEdge last = edge;
    // As many steps as there are edges: a damaged catalog may have a ring of them.
    for (size_t step = 0; step < next.size() && gone.contains(last.to); ++step) {
      const auto onwards = next.find(last.to);
      if (onwards == next.end()) break;
      last = onwards->second;
    }
    if (gone.contains(last.to)) continue;  // nothing is behind them
    change.put_edges.push_back({from, last.to, EdgeKind::kNext, 1, last.time});
    change.put_edges.push_back({last.to, from, EdgeKind::kPrevious, 1, last.time});
  }
  return change;
}

int64_t MemoryGraph::bytes() const {
  return std::ssize(known_->blocks) * 32 + (gardener_ == nullptr ? 0 : gardener_->bytes());
}

}  // namespace everlong::graph
