// Import of a whole memory from one file (docs/format.md, "Export").
#include <algorithm>
#include <utility>

#include "everlong/base/out_of_memory.h"
#include "export_chunks.h"
#include "manifest_file.h"
#include "writer.h"

namespace everlong::store {
namespace {

constexpr uint32_t kFirstWithRoles = 3;  // of the export's versions
constexpr int64_t kGroupBytes = int64_t{64} << 20;

// Takes the chunks of an export, in order, into a store that is being made.
class Importer {
 public:
  Importer(ExportReader& reader, StoreState& made) : reader_(reader), made_(made), writer_(made) {}

  Status TakeAll() {
    while (true) {
      EVERLONG_ASSIGN_OR_RETURN(ExportReader::Piece piece, reader_.Next());
      switch (piece.type) {
        case Chunk::kBlock:
          EVERLONG_RETURN_IF_ERROR(TakeBlock(piece.body));
          break;
        case Chunk::kTensors:
          EVERLONG_RETURN_IF_ERROR(TakeTensors(piece.body));
          break;
        case Chunk::kFile:
          EVERLONG_RETURN_IF_ERROR(TakeFile(piece.body));
          break;
        case Chunk::kNode:
          EVERLONG_RETURN_IF_ERROR(TakeNode(piece.body));
          break;
        case Chunk::kEdge:
          EVERLONG_RETURN_IF_ERROR(TakeEdge(piece.body));
          break;
        case Chunk::kEnd:
          return TakeEnd(piece.body);
        default:
          return reader_.Corrupt("a chunk of its kind is not allowed there");
      }
    }
  }

 private:
  // A block while its chunks are read.
  struct Arriving {
    int64_t id = 0;
    BlockDraft draft;
    std::vector<int32_t> token_ids;
    std::vector<int64_t> page_bytes;
    std::vector<std::byte> kv;
    std::vector<Tensor> tensors;
  };

  Status TakeBlock(std::span<const std::byte> body) {
    EVERLONG_RETURN_IF_ERROR(FinishBlock());
    if (!graph_.nodes.empty() || !graph_.edges.empty()) return reader_.Corrupt("a block comes after the graph");
    Unpacker unpacker(body);
    Arriving block;
    const int64_t& id = block.id;
    BlockDraft& draft = block.draft;
    int64_t tags = 0;
    unpacker.Take(block.id, draft.stream, draft.span.begin, draft.span.end, draft.sink_tokens, draft.created_at);
    unpacker.Take(draft.source, tags);
    for (; tags > 0 && unpacker.whole(); --tags) unpacker.Take(draft.tags.emplace_back());
    unpacker.Take(block.token_ids, block.page_bytes);
    auto role = static_cast<int64_t>(Role::kRead);
    if (reader_.version() >= kFirstWithRoles) unpacker.Take(role);
    draft.role = RoleOf(role).value_or(Role::kRead);
    if (!unpacker.finished() || id <= newest_ || id > kLargestBlockId || !RoleOf(role) || draft.span.begin < 0 ||
        draft.span.end < draft.span.begin) {
      return reader_.Corrupt("block " + std::to_string(id) + " cannot be");
    }
    if (!block.page_bytes.empty()) {
      EVERLONG_ASSIGN_OR_RETURN(ExportReader::Piece kv, reader_.Next());
      if (kv.type != Chunk::kKv) return reader_.Corrupt("block " + std::to_string(id) + " has lost its kv");
      block.kv = std::move(kv.body);
    }
    newest_ = id;
    ++blocks_;
    arriving_ = std::move(block);
    return OkStatus();
  }

  Status TakeTensors(std::span<const std::byte> body) {
    if (!arriving_) return reader_.Corrupt("tensors of no block");
    Unpacker unpacker(body);
    int64_t number = 0;
    unpacker.Take(number);
    const auto kind = static_cast<PayloadKind>(number);
    Result<std::vector<Tensor>> tensors = DecodeTensors(unpacker.Rest());
    const bool is_kind = std::ranges::find(kTensorKinds, kind) != kTensorKinds.end();
    if (!unpacker.whole() || !is_kind || !tensors.ok()) return reader_.Corrupt("tensors of a block do not fit");
    for (Tensor& tensor : *tensors) {
      tensor.name.insert(0, NamePrefix(kind));
      arriving_->tensors.push_back(std::move(tensor));
    }
    return OkStatus();
  }

  // Put the block that was read into the group.
  Status FinishBlock() {
    if (!arriving_) return OkStatus();
    Arriving& block = *arriving_;
    const std::vector<TensorView> tensors = ViewsOf(block.tensors);
    block.draft.token_ids = block.token_ids;
    block.draft.page_bytes = block.page_bytes;
    block.draft.payload = block.kv;
    block.draft.tensors = tensors;
    group_bytes_ += OwnedDraft::BytesOf(block.draft);
    group_.emplace_back(block.id, block.draft);
    arriving_.reset();
    return group_bytes_ < kGroupBytes ? OkStatus() : StoreGroup();
  }

  Status TakeNode(std::span<const std::byte> body) {
    Unpacker unpacker(body);
    GraphNode node;
    unpacker.Take(node.id, node.kind, node.level, node.count, node.square_sum, node.created_at, node.updated_at);
    unpacker.Take(node.vector, node.linear_sum);
    if (!unpacker.finished()) return reader_.Corrupt("node " + std::to_string(node.id) + " cannot be");
    graph_.nodes.push_back(std::move(node));
    return OkStatus();
  }

  Status TakeEdge(std::span<const std::byte> body) {
    Unpacker unpacker(body);
    GraphEdge edge;
    unpacker.Take(edge.from, edge.to, edge.kind, edge.weight, edge.time);
    if (!unpacker.finished()) return reader_.Corrupt("an edge cannot be");
    graph_.edges.push_back(edge);
    return OkStatus();
  }

  // Store all of the graph, or the file is wrong.
  Status StoreGraph() {
    const std::pair<int64_t, int64_t> size(std::ssize(graph_.nodes), std::ssize(graph_.edges));
    EVERLONG_RETURN_IF_ERROR(AsCorrupt(writer_.RestoreGraph(std::move(graph_))));
    EVERLONG_ASSIGN_OR_RETURN(const CatalogTotals stored, made_.catalog().Totals());
    if (std::pair(stored.nodes, stored.edges) == size) return OkStatus();
    return reader_.Corrupt("its graph does not fit its blocks");
  }

  Status TakeFile(std::span<const std::byte> body) {
    Unpacker unpacker(body);
    std::string name;
    unpacker.Take(name);
    const std::span<const std::byte> bytes = unpacker.Rest();
    if (!unpacker.whole()) return reader_.Corrupt("a file of it is cut short");
    return AsCorrupt(made_.PutFile(name, bytes));
  }

  Status TakeEnd(std::span<const std::byte> body) {
    EVERLONG_RETURN_IF_ERROR(FinishBlock());
    EVERLONG_RETURN_IF_ERROR(StoreGroup());
    EVERLONG_RETURN_IF_ERROR(StoreGraph());
    Unpacker unpacker(body);
    int64_t next_id = 0;
    int64_t blocks = 0;
    unpacker.Take(next_id, blocks);
    if (!unpacker.finished() || !reader_.finished() || blocks != blocks_ || next_id <= newest_ ||
        next_id - 1 > kLargestBlockId) {
      return reader_.Corrupt("its end does not fit what comes before it");
    }
    return writer_.ReserveIdsBelow(next_id);
  }

  Status StoreGroup() {
    const Status stored = writer_.Restore(group_);
    group_.clear();
    group_bytes_ = 0;
    return AsCorrupt(stored);
  }

  // Return the store's "wrong argument" as "wrong file".
  [[nodiscard]] Status AsCorrupt(const Status& status) const {
    const bool wrong = status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound;
    return wrong ? reader_.Corrupt(status.message()) : status;
  }

  ExportReader& reader_;
  StoreState& made_;
  Writer writer_;
  int64_t newest_ = 0;
  int64_t blocks_ = 0;
  std::optional<Arriving> arriving_;
  Graph graph_;
  std::vector<OwnedDraft> group_;
  int64_t group_bytes_ = 0;
};

// Make an unfinished store with what a file holds. It may throw std::bad_alloc.
Result<std::unique_ptr<StoreState>> TakeFrom(const std::filesystem::path& file,
                                             const std::optional<std::filesystem::path>& folder,
                                             const StoreOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(ExportReader reader, ExportReader::Begin(file));
  EVERLONG_ASSIGN_OR_RETURN(const ExportReader::Piece first, reader.Next());
  if (first.type != Chunk::kManifest) return reader.Corrupt("it does not begin with a manifest");
  const std::string_view text(reinterpret_cast<const char*>(first.body.data()), first.body.size());
  EVERLONG_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text, file.string()));
  manifest.format_version = kFormatVersion;
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<StoreState> made, StoreState::MakeUnfinished(folder, manifest, options));
  EVERLONG_RETURN_IF_ERROR(Importer(reader, *made).TakeAll());
  return made;
}

}  // namespace

Result<std::unique_ptr<MemoryStore>> MemoryStore::Import(const std::filesystem::path& file,
                                                         const std::optional<std::filesystem::path>& folder,
                                                         const StoreOptions& options, const Acceptance& accepts) {
  return OrOutOfMemory([&]() -> Result<std::unique_ptr<MemoryStore>> {
    EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<StoreState> made, TakeFrom(file, folder, options));
    std::unique_ptr<MemoryStore> store(new MemoryStore(std::move(made)));
    if (accepts) EVERLONG_RETURN_IF_ERROR(accepts(*store));
    // Open it like any other memory, so that ids go on where they were.
    EVERLONG_RETURN_IF_ERROR(store->state_->FinishMaking());
    return store;
  });
}

}  // namespace everlong::store
