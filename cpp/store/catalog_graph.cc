// The catalog's reads and writes of the graph beside its blocks.
#include <cstring>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "catalog.h"
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
constexpr std::string_view kDeleteNode = "DELETE FROM nodes WHERE id = ?";
constexpr std::string_view kSelectEdges =
    "SELECT source, target, kind, weight, time, crc FROM edges ORDER BY source, target, kind";
constexpr std::string_view kSelectEdgesOf =
    "SELECT source, target, kind, weight, time, crc FROM edges WHERE source = ? OR target = ? "
    "ORDER BY source, target, kind";
constexpr std::string_view kPutEdge =
    "INSERT OR REPLACE INTO edges (source, target, kind, weight, time, crc) VALUES (?, ?, ?, ?, ?, ?)";
constexpr std::string_view kDeleteEdge = "DELETE FROM edges WHERE source = ? AND target = ? AND kind = ?";
constexpr std::string_view kDeleteEdgesFrom = "DELETE FROM edges WHERE source = ?";
constexpr std::string_view kDeleteEdgesTo = "DELETE FROM edges WHERE target = ?";
constexpr std::string_view kSelectLiveBlocks = "SELECT id FROM blocks WHERE state = 0";

uint32_t NodeChecksum(const GraphNode& node) {
  return RowChecksum()
      .Add(node.id)
      .Add(static_cast<int64_t>(node.kind))
      .Add(int64_t{node.level})
      .Add(node.count)
      .Add(node.square_sum)
      .Add(node.created_at)
      .Add(node.updated_at)
      .Add(std::as_bytes(std::span(node.vector)))
      .Add(std::as_bytes(std::span(node.linear_sum)))
      .value();
}

uint32_t EdgeChecksum(const GraphEdge& edge) {
  return RowChecksum()
      .Add(edge.from)
      .Add(edge.to)
      .Add(static_cast<int64_t>(edge.kind))
      .Add(edge.weight)
      .Add(edge.time)
      .value();
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

}  // namespace

Result<bool> Catalog::HasNode(int64_t id) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kHasNode));
  return query.Bind(id).Step();
}

Status Catalog::PutNode(const GraphNode& node, int64_t block) {
  GraphNode row = node;
  if (row.id == kThisBlock) row.id = block;
  for (double* const number : {&row.square_sum, &row.created_at, &row.updated_at}) {
    *number += 0.0;  // -0.0 becomes 0, because SQLite returns it as 0
  }
  if (row.kind == NodeKind::kBlock) {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kHasBlock));
    EVERLONG_ASSIGN_OR_RETURN(const bool is_there, query.Bind(row.id).Step());
    if (!is_there) return OkStatus();
  }
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kPutNode));
  query.Bind(row.id).Bind(static_cast<int64_t>(row.kind)).Bind(int64_t{row.level}).Bind(row.count);
  query.Bind(row.square_sum).Bind(row.created_at).Bind(row.updated_at).Bind(int64_t{NodeChecksum(row)});
  query.Bind(std::as_bytes(std::span(row.vector))).Bind(std::as_bytes(std::span(row.linear_sum)));
  return query.Run();
}

Status Catalog::PutEdge(const GraphEdge& edge, int64_t block) {
  GraphEdge row = edge;
  for (int64_t* const end : {&row.from, &row.to}) {
    if (*end == kThisBlock) *end = block;
    EVERLONG_ASSIGN_OR_RETURN(const bool is_there, HasNode(*end));
    if (!is_there) return OkStatus();
  }
  row.weight += 0.0;
  row.time += 0.0;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kPutEdge));
  query.Bind(row.from).Bind(row.to).Bind(static_cast<int64_t>(row.kind)).Bind(row.weight).Bind(row.time);
  return query.Bind(int64_t{EdgeChecksum(row)}).Run();
}

Status Catalog::DropNode(int64_t id) {
  for (const std::string_view sql : {kDeleteEdgesFrom, kDeleteEdgesTo, kDeleteNode}) {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(sql));
    EVERLONG_RETURN_IF_ERROR(query.Bind(id).Run());
  }
  return OkStatus();
}

Status Catalog::DropEdge(const EdgeKey& edge) {
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kDeleteEdge));
  return query.Bind(edge.from).Bind(edge.to).Bind(static_cast<int64_t>(edge.kind)).Run();
}

Status Catalog::Apply(const GraphChange& change, int64_t block) {
  for (const EdgeKey& edge : change.drop_edges) EVERLONG_RETURN_IF_ERROR(DropEdge(edge));
  for (const int64_t id : change.drop_nodes) EVERLONG_RETURN_IF_ERROR(DropNode(id));
  for (const GraphNode& node : change.put_nodes) EVERLONG_RETURN_IF_ERROR(PutNode(node, block));
  for (const GraphEdge& edge : change.put_edges) EVERLONG_RETURN_IF_ERROR(PutEdge(edge, block));
  return OkStatus();
}

Status Catalog::ChangeGraph(const GraphChange& change) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_, Transaction::Kind::kWrite));
  EVERLONG_RETURN_IF_ERROR(Apply(change));
  return transaction.Commit();
}

Result<Graph> Catalog::ReadGraph(std::vector<Damage>* damage, GraphChange* lost) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  Graph graph;
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  if (schema < 2) return graph;
  const auto complain = [&](const std::string& what) {
    Status status = Mismatch(what);
    if (damage == nullptr) return status;
    damage->push_back({0, status.message()});
    return OkStatus();
  };
  std::unordered_set<int64_t> blocks;
  {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectLiveBlocks));
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
      if (!more) break;
      blocks.insert(query.Int64(0));
    }
  }
  std::unordered_set<int64_t> nodes;
  {
    EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectNodes));
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
      if (!more) break;
      bool whole = false;
      GraphNode node = NodeOf(query, whole);
      const bool hangs = node.kind == NodeKind::kBlock && !blocks.contains(node.id);
      if (!whole || hangs) {
        EVERLONG_RETURN_IF_ERROR(complain((whole ? "no block has node " : "checksum mismatch in the row of node ") +
                                          std::to_string(node.id)));
        lost->drop_nodes.push_back(node.id);
        continue;
      }
      nodes.insert(node.id);
      graph.nodes.push_back(std::move(node));
    }
  }
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectEdges));
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    bool whole = false;
    const GraphEdge edge = EdgeOf(query, whole);
    if (!whole || !nodes.contains(edge.from) || !nodes.contains(edge.to)) {
      EVERLONG_RETURN_IF_ERROR(
          complain(whole ? NameOf(edge) + " has lost an end" : "checksum mismatch in the row of " + NameOf(edge)));
      lost->drop_edges.push_back({edge.from, edge.to, edge.kind});
      continue;
    }
    graph.edges.push_back(edge);
  }
  return graph;
}

Result<GraphNode> Catalog::Node(int64_t id) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  const auto missing = [id] { return NotFoundError("no node " + std::to_string(id)); };
  if (schema < 2) return missing();
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectNode));
  EVERLONG_ASSIGN_OR_RETURN(const bool found, query.Bind(id).Step());
  if (!found) return missing();
  bool whole = false;
  GraphNode node = NodeOf(query, whole);
  if (!whole) return Mismatch("checksum mismatch in the row of node " + std::to_string(id));
  return node;
}

Result<std::vector<GraphNode>> Catalog::Nodes(NodeKind kind) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  std::vector<GraphNode> nodes;
  if (schema < 2) return nodes;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectNodesOf));
  query.Bind(static_cast<int64_t>(kind));
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return nodes;
    bool whole = false;
    nodes.push_back(NodeOf(query, whole));
    if (!whole) return Mismatch("checksum mismatch in the row of node " + std::to_string(nodes.back().id));
  }
}

Result<std::vector<int64_t>> Catalog::NodeIds(NodeKind kind) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  std::vector<int64_t> ids;
  if (schema < 2) return ids;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectNodeIdsOf));
  query.Bind(static_cast<int64_t>(kind));
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return ids;
    ids.push_back(query.Int64(0));
  }
}

Result<std::vector<GraphEdge>> Catalog::EdgesOf(int64_t node) {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  std::vector<GraphEdge> edges;
  if (schema < 2) return edges;
  EVERLONG_ASSIGN_OR_RETURN(Query query, database_.Prepare(kSelectEdgesOf));
  query.Bind(node).Bind(node);
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return edges;
    bool whole = false;
    edges.push_back(EdgeOf(query, whole));
    if (!whole) return Mismatch("checksum mismatch in the row of " + NameOf(edges.back()));
  }
}

Result<std::pair<int64_t, int64_t>> Catalog::GraphSize() {
  const std::scoped_lock lock(mutex_);
  EVERLONG_RETURN_IF_ERROR(Refresh());
  EVERLONG_ASSIGN_OR_RETURN(const Transaction snapshot, Transaction::Begin(database_, Transaction::Kind::kRead));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t schema, SchemaNow());
  if (schema < 2) return std::pair<int64_t, int64_t>();
  EVERLONG_ASSIGN_OR_RETURN(const int64_t nodes, SelectNumber(database_, "SELECT count(*) FROM nodes"));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t edges, SelectNumber(database_, "SELECT count(*) FROM edges"));
  return std::pair(nodes, edges);
}

}  // namespace everlong::store
