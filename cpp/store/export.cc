// Export of a whole memory as one file: the manifest first, an end chunk last, which shows that the file was not cut
// short.
#include <optional>
#include <unordered_set>
#include <utility>

#include "everlong/base/file.h"
#include "export_chunks.h"
#include "manifest_file.h"
#include "writer.h"

namespace everlong::store {
namespace {

Packer EncodeBlock(const OwnedDraft& block) {
  const BlockDraft& draft = block.draft();
  Packer packer;
  packer.Add(block.id(), draft.stream, draft.span.begin, draft.span.end, draft.sink_tokens, draft.created_at);
  packer.Add(draft.source, draft.tags.size());
  for (const std::string& tag : draft.tags) packer.Add(tag);
  return packer.Add(draft.token_ids, draft.page_bytes, draft.role);
}

Packer EncodeNode(const GraphNode& node) {
  return Packer().Add(node.id, node.kind, node.level, node.count, node.square_sum, node.created_at, node.updated_at,
                      node.vector, node.linear_sum);
}

Status WriteBlock(ExportWriter& writer, const OwnedDraft& block) {
  const BlockDraft& draft = block.draft();
  EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kBlock, EncodeBlock(block).bytes()));
  if (!draft.page_bytes.empty()) EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kKv, draft.payload));
  if (draft.tensors.empty()) return OkStatus();
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> encoded, EncodeTensors(draft.tensors));
  return writer.Write(Chunk::kTensors, Packer().Add(PayloadKind::kTensors).Rest(encoded).bytes());
}

// Write the graph of the blocks that were written. A writer beside this reader may have forgotten others since, and
// added more.
Status WriteGraph(ExportWriter& writer, const Graph& graph, const std::unordered_set<int64_t>& blocks) {
  std::unordered_set<int64_t> nodes;
  for (const GraphNode& node : graph.nodes) {
    if (node.kind == NodeKind::kBlock && !blocks.contains(node.id)) continue;
    EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kNode, EncodeNode(node).bytes()));
    nodes.insert(node.id);
  }
  for (const GraphEdge& edge : graph.edges) {
    if (!nodes.contains(edge.from) || !nodes.contains(edge.to)) continue;
    EVERLONG_RETURN_IF_ERROR(
        writer.Write(Chunk::kEdge, Packer().Add(edge.from, edge.to, edge.kind, edge.weight, edge.time).bytes()));
  }
  return OkStatus();
}

}  // namespace

Result<OwnedDraft> StoreState::ReadBlock(const BlockInfo& info) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<int32_t> token_ids, rooms_.catalog->TokenIds(info.id));
  std::vector<PageKey> keys;
  for (int32_t page = 0; page < info.pages; ++page) keys.push_back({info.id, page});
  EVERLONG_ASSIGN_OR_RETURN(const auto rows, rooms_.catalog->Locate(keys));
  std::vector<int64_t> page_bytes;
  std::vector<std::byte> payload(static_cast<size_t>(info.payload_bytes));
  std::vector<PageRead> reads;
  size_t at = 0;
  for (int32_t page = 0; page < info.pages; ++page) {
    const auto parts = static_cast<int32_t>(rows[static_cast<size_t>(page)]->part_crcs.size());
    page_bytes.push_back(parts * rows[static_cast<size_t>(page)]->part_bytes);
    if (page_bytes.back() > std::ssize(payload) - static_cast<int64_t>(at)) {
      return CorruptError("block " + std::to_string(info.id) + ": its pages have more bytes than it has");
    }
    const auto bytes = static_cast<size_t>(page_bytes.back());
    reads.push_back({info.id, page, 0, parts, std::span(payload).subspan(at, bytes)});
    at += bytes;
  }
  EVERLONG_RETURN_IF_ERROR(StartReadCommitted(reads)->Wait());
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<Tensor> tensors, CommittedTensors(info.id));
  const std::vector<TensorView> tensor_views = ViewsOf(tensors);
  BlockDraft draft;
  draft.stream = info.stream;
  draft.span = info.span;
  draft.sink_tokens = info.sink_tokens;
  draft.source = info.source;
  draft.created_at = info.created_at;
  draft.tags = info.tags;
  draft.token_ids = token_ids;
  draft.payload = payload;
  draft.page_bytes = page_bytes;
  draft.tensors = tensor_views;
  draft.role = info.role;
  return OwnedDraft(info.id, draft);
}

Status MemoryStore::Export(const std::filesystem::path& file) {
  EVERLONG_RETURN_IF_ERROR(state_->WaitForQueued());
  EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<const StoreState> as_of, state_->AsOfNow());
  EVERLONG_ASSIGN_OR_RETURN(ExportWriter writer, ExportWriter::Create(file));
  std::optional<Writer> turn;
  if (!state_->folder()) turn.emplace(*state_);
  const Status status = (as_of ? *as_of : *state_).Export(writer);
  if (!status.ok()) static_cast<void>(RemoveFile(file));
  return status;
}

Status StoreState::Export(ExportWriter& file) const {
  Manifest described = manifest();
  described.format_version = kFormatVersion;  // a reader exports a memory that may be of an older format
  EVERLONG_ASSIGN_OR_RETURN(const std::string text, ManifestText(described));
  EVERLONG_RETURN_IF_ERROR(file.Write(Chunk::kManifest, std::as_bytes(std::span(text.data(), text.size()))));
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> names, own_files_.Names());
  for (const std::string& name : names) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, own_files_.Get(name));
    EVERLONG_RETURN_IF_ERROR(file.Write(Chunk::kFile, Packer().Add(name).Rest(bytes).bytes()));
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, catalog().Blocks({}));
  std::unordered_set<int64_t> written;
  for (const BlockInfo& info : blocks) {
    const Result<OwnedDraft> block = ReadBlock(info);
    // A writer beside this reader may have forgotten it since.
    if (read_only() && block.status().code() == StatusCode::kNotFound) continue;
    EVERLONG_RETURN_IF_ERROR(block.status());
    EVERLONG_RETURN_IF_ERROR(WriteBlock(file, *block));
    written.insert(info.id);
  }
  EVERLONG_ASSIGN_OR_RETURN(const Graph graph, catalog().graph().ReadAll());
  EVERLONG_RETURN_IF_ERROR(WriteGraph(file, graph, written));
  // Read it last: a writer beside this reader gives ids meanwhile, and the next id is above all that were written.
  EVERLONG_ASSIGN_OR_RETURN(const int64_t next_id, catalog().NextBlockId());
  EVERLONG_RETURN_IF_ERROR(file.Write(Chunk::kEnd, Packer().Add(next_id, written.size()).bytes()));
  return file.Finish();
}

}  // namespace everlong::store
