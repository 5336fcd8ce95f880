#include "catalog_graph.h"

#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>

#include "catalog_rows.h"
#include "row_checksum.h"

namespace everlong::store {
namespace {

constexpr std::string_view kSelectNodes =
    "SELECT id, kind, level, count, square_sum, created_at, updated_at, crc, vector, linear_sum FROM nodes ORDER BY id";
constexpr std::string_view kSelectNodesOf =
    "SELECT id, kind, level, count, square_sum, created_at, updated_at, crc, vector, linear_sum FROM nodes "
    "WHERE kind = ? ORDER BY id";
constexpr std::string_view kSelectNodeIdsOf = "SELECT id FROM nodes WHERE kind = ? ORDER BY id";
constexpr std::string_view kSelectNode =
    "SELECT id, kind, level, count, square_sum, created_at, updated_at, crc, vector, linear_sum FROM nodes WHERE id = "
    "?";
constexpr std::string_view kPutNode =
    "INSERT OR REPLACE INTO nodes (id, kind, level, count, square_sum, created_at, updated_at, crc, vector, "
    "linear_sum) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr std::string_view kHasNode = "SELECT 1 FROM nodes WHERE id = ?";
constexpr std::string_view kHasBlock = "SELECT 1 FROM blocks WHERE id = ? AND state = 0";
constexpr std::string_view kHasEdge = "SELECT 1 FROM edges WHERE source = ? AND target = ? AND kind = ?";
constexpr std::string_view kDeleteNode = "DELETE FROM nodes WHERE id = ?";
constexpr std::string_view kSelectEdges =
    "SELECT source, target, kind, weight, time, crc FROM edges WHERE " EVERLONG_HAS_EDGE_KEY
    " ORDER BY source, target, kind";
constexpr std::string_view kCountEdgesWithoutKey = "SELECT count(*) FROM edges WHERE NOT " EVERLONG_HAS_EDGE_KEY;
constexpr std::string_view kSelectEdgesOf =
    "SELECT source, target, kind, weight, time, crc FROM edges WHERE (source = ? OR target = ?) "
    "AND " EVERLONG_HAS_EDGE_KEY " ORDER BY source, target, kind";
constexpr std::string_view kPutEdge =
    "INSERT OR REPLACE INTO edges (source, target, kind, weight, time, crc) VALUES (?, ?, ?, ?, ?, ?)";
constexpr std::string_view kDeleteEdge = "DELETE FROM edges WHERE source = ? AND target = ? AND kind = ?";
constexpr std::string_view kDeleteEdgesFrom = "DELETE FROM edges WHERE source = ?";
constexpr std::string_view kDeleteEdgesTo = "DELETE FROM edges WHERE target = ?";
constexpr std::string_view kSelectLiveBlocks = "SELECT id FROM blocks WHERE state = 0";

uint32_t NodeChecksum(const GraphNode& node) {
  return RowChecksum()
      .Add(node.id, node.kind, node.level, node.count, node.square_sum, node.created_at, node.updated_at, node.vector,
           node.linear_sum)
      .value();
}

uint32_t EdgeChecksum(const GraphEdge& edge) {
  return RowChecksum().Add(edge.from, edge.to, edge.kind, edge.weight, edge.time).value();
}

template <class T>
std::vector<T> Numbers(std::span<const std::byte> blob) {
  std::vector<T> numbers(blob.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), blob.data(), numbers.size() * sizeof(T));
  return numbers;
}

// Return the node of the current row of `query`. `whole` says whether it matches its checksum.
GraphNode NodeOf(const Query& query, bool& whole) {
  GraphNode node;
  node.id = query.Int64(0);
  node.kind = static_cast<NodeKind>(query.Int64(1));
  node.level = static_cast<int32_t>(query.Int64(2));
  node.count = query.Int64(3);
  node.square_sum = query.Double(4);
  node.created_at = query.Double(5);
  node.updated_at = query.Double(6);
  node.vector = Numbers<float>(query.Blob(8));
  node.linear_sum = Numbers<double>(query.Blob(9));
  whole = NodeChecksum(node) == query.Int64(7) && query.Int64(1) == static_cast<int32_t>(node.kind) &&
          query.Int64(2) == node.level && ValidateNode(node).ok();
  return node;
}

GraphEdge EdgeOf(const Query& query, bool& whole) {
  GraphEdge edge{query.Int64(0), query.Int64(1), static_cast<EdgeKind>(query.Int64(2)), query.Double(3),
                 query.Double(4)};
  whole = EdgeChecksum(edge) == query.Int64(5) && query.Int64(2) == static_cast<int32_t>(edge.kind) &&
          ValidateEdge(edge).ok();
  return edge;
}

std::string NameOf(const GraphEdge& edge) {
  return "the edge from " + std::to_string(edge.from) + " to " + std::to_string(edge.to);
}

// A turn that reads the graph; none of a catalog that has no graph.
Result<std::optional<CatalogFile::Turn>> ReadGraphOf(CatalogFile& file) {
  EVERLONG_ASSIGN_OR_RETURN(CatalogFile::Turn turn, file.Read());
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaOf(turn.database));
  if (schema < 2) return std::optional<CatalogFile::Turn>();
  return std::optional<CatalogFile::Turn>(std::move(turn));
}

template <class... Key>
Result<bool> Has(Database& database, std::string_view sql, const Key&... key) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database.Prepare(sql));
  return query.Bind(key...).Step();
}

Status PutNode(Database& database, const GraphNode& node, ChangingTotals& totals, int64_t block) {
  GraphNode row = node;
  if (row.id == kThisBlock) row.id = block;
  for (double* const number : {&row.square_sum, &row.created_at, &row.updated_at}) {
    *number += 0.0;  // -0.0 becomes 0, because SQLite returns it as 0
  }
  if (row.kind == NodeKind::kBlock) {
    EVERLONG_ASSIGN_OR_RETURN(const bool is_there, Has(database, kHasBlock, row.id));
    if (!is_there) return OkStatus();
  }
  EVERLONG_ASSIGN_OR_RETURN(const bool is_there, Has(database, kHasNode, row.id));
  totals.AddToGraph(is_there ? 0 : 1, 0);
  return database.Run(kPutNode, row.id, row.kind, row.level, row.count, row.square_sum, row.created_at, row.updated_at,
                      NodeChecksum(row), row.vector, row.linear_sum);
}

Status PutEdge(Database& database, const GraphEdge& edge, ChangingTotals& totals, int64_t block) {
  GraphEdge row = edge;
  for (int64_t* const end : {&row.from, &row.to}) {
    if (*end == kThisBlock) *end = block;
    EVERLONG_ASSIGN_OR_RETURN(const bool is_there, Has(database, kHasNode, *end));
    if (!is_there) return OkStatus();
  }
  row.weight += 0.0;
  row.time += 0.0;
  EVERLONG_ASSIGN_OR_RETURN(const bool is_there, Has(database, kHasEdge, row.from, row.to, row.kind));
  totals.AddToGraph(0, is_there ? 0 : 1);
  return database.Run(kPutEdge, row.from, row.to, row.kind, row.weight, row.time, EdgeChecksum(row));
}

}  // namespace

Status DropNode(Database& database, int64_t id, ChangingTotals& totals) {
  int64_t edges = 0;
  for (const std::string_view sql : {kDeleteEdgesFrom, kDeleteEdgesTo}) {
    EVERLONG_RETURN_IF_ERROR(database.Run(sql, id));
    edges += database.Changes();
  }
  EVERLONG_RETURN_IF_ERROR(database.Run(kDeleteNode, id));
  totals.AddToGraph(-database.Changes(), -edges);
  return OkStatus();
}

Status ApplyChange(Database& database, const GraphChange& change, ChangingTotals& totals, int64_t block) {
  for (const EdgeKey& edge : change.drop_edges) {
    EVERLONG_RETURN_IF_ERROR(database.Run(kDeleteEdge, edge.from, edge.to, edge.kind));
    totals.AddToGraph(0, -database.Changes());
  }
  for (const int64_t id : change.drop_nodes) EVERLONG_RETURN_IF_ERROR(DropNode(database, id, totals));
  for (const GraphNode& node : change.put_nodes) EVERLONG_RETURN_IF_ERROR(PutNode(database, node, totals, block));
  for (const GraphEdge& edge : change.put_edges) EVERLONG_RETURN_IF_ERROR(PutEdge(database, edge, totals, block));
  return OkStatus();
}

Result<Graph> CatalogGraph::ReadAll(std::vector<Damage>* damage, GraphChange* lost) const {
  Graph graph;
  EVERLONG_ASSIGN_OR_RETURN(const auto turn, ReadGraphOf(file_));
  if (!turn) return graph;
  Database& database = turn->database;
  const auto complain = [&](const std::string& what) {
    Status status = Mismatch(database, what);
    if (damage == nullptr) return status;
    damage->push_back({0, status.message()});
    return OkStatus();
  };
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<int64_t> live, SelectNumbers(database, kSelectLiveBlocks));
  const std::unordered_set<int64_t> blocks(live.begin(), live.end());
  std::unordered_set<int64_t> nodes;
  EVERLONG_ASSIGN_OR_RETURN(Query node_query, database.Prepare(kSelectNodes));
  EVERLONG_RETURN_IF_ERROR(node_query.ForEach([&]() -> Status {
    bool whole = false;
    GraphNode node = NodeOf(node_query, whole);
    const bool hangs = node.kind == NodeKind::kBlock && !blocks.contains(node.id);
    if (!whole || hangs) {
      EVERLONG_RETURN_IF_ERROR(
          complain((whole ? "no block has node " : "checksum mismatch in the row of node ") + std::to_string(node.id)));
      lost->drop_nodes.push_back(node.id);
      return OkStatus();
    }
    nodes.insert(node.id);
    graph.nodes.push_back(std::move(node));
    return OkStatus();
  }));
  EVERLONG_ASSIGN_OR_RETURN(Query edge_query, database.Prepare(kSelectEdges));
  EVERLONG_RETURN_IF_ERROR(edge_query.ForEach([&]() -> Status {
    bool whole = false;
    const GraphEdge edge = EdgeOf(edge_query, whole);
    if (whole && nodes.contains(edge.from) && nodes.contains(edge.to)) {
      graph.edges.push_back(edge);
      return OkStatus();
    }
    EVERLONG_RETURN_IF_ERROR(
        complain(whole ? NameOf(edge) + " has lost an end" : "checksum mismatch in the row of " + NameOf(edge)));
    lost->drop_edges.push_back({edge.from, edge.to, edge.kind});
    return OkStatus();
  }));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t loose, SelectNumber(database, kCountEdgesWithoutKey));
  if (loose > 0) EVERLONG_RETURN_IF_ERROR(complain(std::to_string(loose) + " rows of edges have a key of none"));
  return graph;
}

Result<GraphNode> CatalogGraph::Node(int64_t id) const {
  EVERLONG_ASSIGN_OR_RETURN(const auto turn, ReadGraphOf(file_));
  const auto missing = [id] { return NotFoundError("no node " + std::to_string(id)); };
  if (!turn) return missing();
  EVERLONG_ASSIGN_OR_RETURN(Query query, turn->database.Prepare(kSelectNode));
  EVERLONG_ASSIGN_OR_RETURN(const bool found, query.Bind(id).Step());
  if (!found) return missing();
  bool whole = false;
  GraphNode node = NodeOf(query, whole);
  if (!whole) return Mismatch(turn->database, "checksum mismatch in the row of node " + std::to_string(id));
  return node;
}

Result<std::vector<GraphNode>> CatalogGraph::Nodes(NodeKind kind) const {
  std::vector<GraphNode> nodes;
  EVERLONG_ASSIGN_OR_RETURN(const auto turn, ReadGraphOf(file_));
  if (!turn) return nodes;
  EVERLONG_ASSIGN_OR_RETURN(Query query, turn->database.Prepare(kSelectNodesOf));
  EVERLONG_RETURN_IF_ERROR(query.Bind(kind).ForEach([&] {
    bool whole = false;
    nodes.push_back(NodeOf(query, whole));
    if (whole) return OkStatus();
    return Mismatch(turn->database, "checksum mismatch in the row of node " + std::to_string(nodes.back().id));
  }));
  return nodes;
}

Result<std::vector<int64_t>> CatalogGraph::NodeIds(NodeKind kind) const {
  EVERLONG_ASSIGN_OR_RETURN(const auto turn, ReadGraphOf(file_));
  return turn ? SelectNumbers(turn->database, kSelectNodeIdsOf, kind) : std::vector<int64_t>();
}

Result<std::vector<GraphEdge>> CatalogGraph::EdgesOf(int64_t node) const {
  std::vector<GraphEdge> edges;
  EVERLONG_ASSIGN_OR_RETURN(const auto turn, ReadGraphOf(file_));
  if (!turn) return edges;
  EVERLONG_ASSIGN_OR_RETURN(Query query, turn->database.Prepare(kSelectEdgesOf));
  EVERLONG_RETURN_IF_ERROR(query.Bind(node, node).ForEach([&] {
    bool whole = false;
    edges.push_back(EdgeOf(query, whole));
    if (whole) return OkStatus();
    return Mismatch(turn->database, "checksum mismatch in the row of " + NameOf(edges.back()));
  }));
  return edges;
}

}  // namespace everlong::store
