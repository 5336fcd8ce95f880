// Export and import of a whole memory as one file (docs/format.md, "Export"). Its chunks have a checksum each. The
// manifest comes first and an end chunk last, which shows that the file was not cut short.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"
#include "everlong/base/out_of_memory.h"
#include "manifest_file.h"
#include "store.h"

namespace everlong::store {
namespace {

constexpr std::string_view kMagic = "EVLEXPRT";
// Version 1 had no kFile. Version 2 had no kNode, no kEdge and no role of a block, and had tensors of format 1's kinds.
constexpr uint32_t kExportVersion = 3;
constexpr uint32_t kFirstWithRoles = 3;
constexpr size_t kPreambleBytes = 16;     // magic, version, zero
constexpr size_t kChunkHeaderBytes = 16;  // type, checksum, length of the body
constexpr int64_t kGroupBytes = int64_t{64} << 20;

enum class Chunk : uint32_t {
  kManifest = 1,
  kBlock = 2,
  kKv = 3,
  kTensors = 4,
  kEnd = 5,
  kFile = 6,
  kNode = 7,
  kEdge = 8
};

uint32_t ChunkChecksum(Chunk type, std::span<const std::byte> body) {
  const auto number = static_cast<uint32_t>(type);
  const uint64_t length = body.size();
  uint32_t crc = Crc32c(std::as_bytes(std::span(&number, 1)));
  crc = Crc32c(std::as_bytes(std::span(&length, 1)), crc);
  return Crc32c(body, crc);
}

// Write values of a chunk's body, one behind the other, little-endian.
class Packer {
 public:
  template <class T>
  Packer& Number(T value) {
    static_assert(sizeof(T) == 8);
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Packer& Bytes(std::span<const std::byte> bytes) {
    Number(static_cast<int64_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Packer& Text(std::string_view text) { return Bytes(std::as_bytes(std::span(text.data(), text.size()))); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Read them from any bytes. What is not there reads as 0 or empty, and `whole` then says so.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  T Number() {
    static_assert(sizeof(T) == 8);
    T value{};
    const std::span<const std::byte> bytes = Take(sizeof value);
    if (whole_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> Bytes() {
    const auto length = Number<int64_t>();
    return Take(length < 0 ? rest_.size() + 1 : static_cast<size_t>(length));
  }
  template <class T>
  std::vector<T> Numbers() {
    const std::span<const std::byte> bytes = Bytes();
    whole_ = whole_ && bytes.size() % sizeof(T) == 0;
    std::vector<T> numbers(whole_ ? bytes.size() / sizeof(T) : 0);
    if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
  std::string Text() {
    const std::span<const std::byte> bytes = Bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> Rest() { return Take(rest_.size()); }
  [[nodiscard]] bool whole() const { return whole_; }
  // Return whether all was taken, and all was there.
  [[nodiscard]] bool finished() const { return whole_ && rest_.empty(); }

 private:
  std::span<const std::byte> Take(size_t count) {
    whole_ = whole_ && count <= rest_.size();
    if (!whole_) return {};
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  std::span<const std::byte> rest_;
  bool whole_ = true;
};

class ExportWriter {
 public:
  static Result<ExportWriter> Create(const std::filesystem::path& path) {
    Result<UniqueFd> file = OpenFile(path, O_RDWR | O_CREAT | O_EXCL);
    std::error_code error;
    if (!file.ok() && std::filesystem::exists(path, error)) {
      return AlreadyExistsError("there is a file '" + path.string() + "' already");
    }
    EVERLONG_RETURN_IF_ERROR(file.status());
    return ExportWriter(std::move(file).value(), path);
  }

  Status WritePreamble() {
    std::array<std::byte, kPreambleBytes> preamble = {};
    std::memcpy(preamble.data(), kMagic.data(), kMagic.size());
    std::memcpy(preamble.data() + kMagic.size(), &kExportVersion, sizeof kExportVersion);
    const std::span<const std::byte> piece = preamble;
    EVERLONG_RETURN_IF_ERROR(WriteAt(file_, path_, 0, std::span(&piece, 1)));
    end_ = kPreambleBytes;
    return OkStatus();
  }

  Status Write(Chunk type, std::span<const std::byte> body) {
    const auto number = static_cast<uint32_t>(type);
    const uint32_t crc = ChunkChecksum(type, body);
    const uint64_t length = body.size();
    std::array<std::byte, kChunkHeaderBytes> header = {};
    std::memcpy(header.data(), &number, sizeof number);
    std::memcpy(header.data() + 4, &crc, sizeof crc);
    std::memcpy(header.data() + 8, &length, sizeof length);
    const std::array<std::span<const std::byte>, 2> pieces = {header, body};
    EVERLONG_RETURN_IF_ERROR(WriteAt(file_, path_, end_, pieces));
    end_ += static_cast<int64_t>(kChunkHeaderBytes + body.size());
    return OkStatus();
  }

  Status Finish() {
    EVERLONG_RETURN_IF_ERROR(SyncFile(file_, path_));
    return SyncFolder(path_.parent_path());
  }

 private:
  ExportWriter(UniqueFd file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}

  UniqueFd file_;
  std::filesystem::path path_;
  int64_t end_ = 0;
};

class ExportReader {
 public:
  struct Piece {
    Chunk type = Chunk::kEnd;
    std::vector<std::byte> body;
  };

  static Result<ExportReader> Begin(const std::filesystem::path& path) {
    EVERLONG_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_RDONLY));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
    ExportReader reader(std::move(file), path, size);
    std::array<std::byte, kPreambleBytes> preamble = {};
    EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(reader.file_, path, 0, preamble));
    uint32_t version = 0;
    std::memcpy(&version, preamble.data() + kMagic.size(), sizeof version);
    if (count != kPreambleBytes || std::memcmp(preamble.data(), kMagic.data(), kMagic.size()) != 0) {
      return reader.Corrupt("it is no exported memory");
    }
    if (version > kExportVersion) {
      return NewerFormatError("exported memory '" + path.string() + "' has format " + std::to_string(version) +
                              "; this everlong reads up to " + std::to_string(kExportVersion) + ": update it");
    }
    if (version == 0) return reader.Corrupt("it has format " + std::to_string(version));
    reader.at_ = kPreambleBytes;
    reader.version_ = version;
    return reader;
  }

  Result<Piece> Next() {
    std::array<std::byte, kChunkHeaderBytes> header = {};
    EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(file_, path_, at_, header));
    uint32_t type = 0;
    uint32_t crc = 0;
    uint64_t length = 0;
    std::memcpy(&type, header.data(), sizeof type);
    std::memcpy(&crc, header.data() + 4, sizeof crc);
    std::memcpy(&length, header.data() + 8, sizeof length);
    const int64_t begin = at_ + static_cast<int64_t>(kChunkHeaderBytes);
    if (count != kChunkHeaderBytes || length > static_cast<uint64_t>(size_ - begin)) {
      return Corrupt("it is cut short at byte " + std::to_string(at_));
    }
    Piece piece{static_cast<Chunk>(type), std::vector<std::byte>(static_cast<size_t>(length))};
    EVERLONG_ASSIGN_OR_RETURN(const int64_t read, ReadAt(file_, path_, begin, piece.body));
    if (read != static_cast<int64_t>(length) || ChunkChecksum(piece.type, piece.body) != crc) {
      return Corrupt("checksum mismatch at byte " + std::to_string(at_));
    }
    at_ = begin + static_cast<int64_t>(length);
    return piece;
  }

  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] bool finished() const { return at_ == size_; }
  [[nodiscard]] Status Corrupt(const std::string& what) const {
    return CorruptError("exported memory '" + path_.string() + "': " + what);
  }

 private:
  ExportReader(UniqueFd file, std::filesystem::path path, int64_t size)
      : file_(std::move(file)), path_(std::move(path)), size_(size) {}

  UniqueFd file_;
  std::filesystem::path path_;
  int64_t size_;
  int64_t at_ = 0;
  uint32_t version_ = 0;
};

std::vector<std::byte> EncodeBlock(const OwnedDraft& block) {
  const BlockDraft& draft = block.draft();
  Packer packer;
  packer.Number(block.id()).Number(draft.stream).Number(draft.span.begin).Number(draft.span.end);
  packer.Number(int64_t{draft.sink_tokens}).Number(draft.created_at).Text(draft.source);
  packer.Number(static_cast<int64_t>(draft.tags.size()));
  for (const std::string& tag : draft.tags) packer.Text(tag);
  packer.Bytes(std::as_bytes(draft.token_ids)).Bytes(std::as_bytes(draft.page_bytes));
  packer.Number(static_cast<int64_t>(draft.role));
  return {packer.bytes().begin(), packer.bytes().end()};
}

Packer EncodeNode(const GraphNode& node) {
  Packer packer;
  packer.Number(node.id).Number(static_cast<int64_t>(node.kind)).Number(int64_t{node.level}).Number(node.count);
  packer.Number(node.square_sum).Number(node.created_at).Number(node.updated_at);
  packer.Bytes(std::as_bytes(std::span(node.vector))).Bytes(std::as_bytes(std::span(node.linear_sum)));
  return packer;
}

Packer EncodeEdge(const GraphEdge& edge) {
  Packer packer;
  packer.Number(edge.from).Number(edge.to).Number(static_cast<int64_t>(edge.kind));
  packer.Number(edge.weight).Number(edge.time);
  return packer;
}

// Takes the chunks of an export, in order, into a store that is being made.
class Importer {
 public:
  Importer(ExportReader& reader, Store& store) : reader_(reader), store_(store) {}

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
    const auto id = unpacker.Number<int64_t>();
    block.id = id;
    BlockDraft& draft = block.draft;
    draft.stream = unpacker.Number<int64_t>();
    draft.span.begin = unpacker.Number<int64_t>();
    draft.span.end = unpacker.Number<int64_t>();
    const auto sink_tokens = unpacker.Number<int64_t>();
    draft.sink_tokens = static_cast<int32_t>(sink_tokens);
    draft.created_at = unpacker.Number<double>();
    draft.source = unpacker.Text();
    for (auto tags = unpacker.Number<int64_t>(); tags > 0 && unpacker.whole(); --tags) {
      draft.tags.push_back(unpacker.Text());
    }
    block.token_ids = unpacker.Numbers<int32_t>();
    block.page_bytes = unpacker.Numbers<int64_t>();
    const std::optional<Role> role =
        reader_.version() < kFirstWithRoles ? Role::kRead : RoleOf(unpacker.Number<int64_t>());
    draft.role = role.value_or(Role::kRead);
    if (!unpacker.finished() || id <= newest_ || id > kLargestBlockId || draft.sink_tokens != sink_tokens || !role ||
        draft.span.begin < 0 || draft.span.end < draft.span.begin) {
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
    const auto kind = static_cast<PayloadKind>(unpacker.Number<int64_t>());
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
    node.id = unpacker.Number<int64_t>();
    const auto kind = unpacker.Number<int64_t>();
    node.kind = static_cast<NodeKind>(kind);
    const auto level = unpacker.Number<int64_t>();
    node.level = static_cast<int32_t>(level);
    node.count = unpacker.Number<int64_t>();
    node.square_sum = unpacker.Number<double>();
    node.created_at = unpacker.Number<double>();
    node.updated_at = unpacker.Number<double>();
    node.vector = unpacker.Numbers<float>();
    node.linear_sum = unpacker.Numbers<double>();
    if (!unpacker.finished() || static_cast<int64_t>(node.kind) != kind || node.level != level) {
      return reader_.Corrupt("node " + std::to_string(node.id) + " cannot be");
    }
    graph_.nodes.push_back(std::move(node));
    return OkStatus();
  }

  Status TakeEdge(std::span<const std::byte> body) {
    Unpacker unpacker(body);
    GraphEdge edge;
    edge.from = unpacker.Number<int64_t>();
    edge.to = unpacker.Number<int64_t>();
    const auto kind = unpacker.Number<int64_t>();
    edge.kind = static_cast<EdgeKind>(kind);
    edge.weight = unpacker.Number<double>();
    edge.time = unpacker.Number<double>();
    if (!unpacker.finished() || static_cast<int64_t>(edge.kind) != kind) return reader_.Corrupt("an edge cannot be");
    graph_.edges.push_back(edge);
    return OkStatus();
  }

  // Store all of the graph, or the file is wrong.
  Status StoreGraph() {
    const std::pair<int64_t, int64_t> size(std::ssize(graph_.nodes), std::ssize(graph_.edges));
    EVERLONG_RETURN_IF_ERROR(AsCorrupt(store_.RestoreGraph(std::move(graph_))));
    EVERLONG_ASSIGN_OR_RETURN(const StoreStats stats, store_.Stats());
    if (std::pair(stats.graph_nodes, stats.graph_edges) == size) return OkStatus();
    return reader_.Corrupt("its graph does not fit its blocks");
  }

  Status TakeFile(std::span<const std::byte> body) {
    Unpacker unpacker(body);
    const std::string name = unpacker.Text();
    const std::span<const std::byte> bytes = unpacker.Rest();
    if (!unpacker.whole()) return reader_.Corrupt("a file of it is cut short");
    return AsCorrupt(store_.PutFile(name, bytes));
  }

  Status TakeEnd(std::span<const std::byte> body) {
    EVERLONG_RETURN_IF_ERROR(FinishBlock());
    EVERLONG_RETURN_IF_ERROR(StoreGroup());
    EVERLONG_RETURN_IF_ERROR(StoreGraph());
    Unpacker unpacker(body);
    const auto next_id = unpacker.Number<int64_t>();
    const auto blocks = unpacker.Number<int64_t>();
    if (!unpacker.finished() || !reader_.finished() || blocks != blocks_ || next_id <= newest_ ||
        next_id - 1 > kLargestBlockId) {
      return reader_.Corrupt("its end does not fit what comes before it");
    }
    return store_.ReserveIdsBelow(next_id);
  }

  Status StoreGroup() {
    const Status stored = store_.Restore(group_);
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
  Store& store_;
  int64_t newest_ = 0;
  int64_t blocks_ = 0;
  std::optional<Arriving> arriving_;
  Graph graph_;
  std::vector<OwnedDraft> group_;
  int64_t group_bytes_ = 0;
};

}  // namespace

Result<OwnedDraft> Store::ReadBlock(const BlockInfo& info) const {
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

Status Store::Export(const std::filesystem::path& file) {
  if (queue_) {
    queue_->Wait();
    EVERLONG_RETURN_IF_ERROR(queue_->failure());
  }
  EVERLONG_ASSIGN_OR_RETURN(ExportWriter writer, ExportWriter::Create(file));
  const auto write_all = [&]() -> Status {
    EVERLONG_RETURN_IF_ERROR(writer.WritePreamble());
    Manifest described = manifest();
    described.format_version = kFormatVersion;  // a reader exports a memory that may be of an older format
    EVERLONG_ASSIGN_OR_RETURN(const std::string text, ManifestText(described));
    EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kManifest, std::as_bytes(std::span(text.data(), text.size()))));
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> names, own_files_.Names());
    for (const std::string& name : names) {
      EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, own_files_.Get(name));
      Packer packer;
      packer.Text(name);
      std::vector<std::byte> body(packer.bytes().begin(), packer.bytes().end());
      body.insert(body.end(), bytes.begin(), bytes.end());
      EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kFile, body));
    }
    const std::scoped_lock lock(write_mutex_);
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, rooms_.catalog->Blocks({}));
    std::unordered_set<int64_t> there;  // blocks that were written
    std::unordered_set<int64_t> nodes;
    for (const BlockInfo& info : blocks) {
      const Result<OwnedDraft> block = ReadBlock(info);
      // A writer beside this reader may have forgotten it since.
      if (rooms_.read_only && block.status().code() == StatusCode::kNotFound) continue;
      EVERLONG_RETURN_IF_ERROR(block.status());
      EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kBlock, EncodeBlock(*block)));
      if (info.pages > 0) EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kKv, block->draft().payload));
      if (const auto tensors = block->draft().tensors; !tensors.empty()) {
        EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> encoded, EncodeTensors(tensors));
        Packer packer;
        packer.Number(static_cast<int64_t>(PayloadKind::kTensors));
        std::vector<std::byte> body(packer.bytes().begin(), packer.bytes().end());
        body.insert(body.end(), encoded.begin(), encoded.end());
        EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kTensors, body));
      }
      there.insert(info.id);
    }
    const int64_t written = std::ssize(there);
    // A writer beside this reader may have forgotten blocks, and added others, since.
    EVERLONG_ASSIGN_OR_RETURN(const Graph graph, rooms_.catalog->ReadGraph());
    for (const GraphNode& node : graph.nodes) {
      if (node.kind == NodeKind::kBlock && !there.contains(node.id)) continue;
      EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kNode, EncodeNode(node).bytes()));
      nodes.insert(node.id);
    }
    for (const GraphEdge& edge : graph.edges) {
      if (!nodes.contains(edge.from) || !nodes.contains(edge.to)) continue;
      EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kEdge, EncodeEdge(edge).bytes()));
    }
    // Read it last: a writer beside this reader gives ids meanwhile, and the next id is above all that were written.
    EVERLONG_ASSIGN_OR_RETURN(const int64_t next_id, rooms_.catalog->NextBlockId());
    EVERLONG_RETURN_IF_ERROR(writer.Write(Chunk::kEnd, Packer().Number(next_id).Number(written).bytes()));
    return writer.Finish();
  };
  const Status status = write_all();
  if (!status.ok()) static_cast<void>(RemoveFile(file));
  return status;
}

namespace {

// It may throw std::bad_alloc.
Result<std::unique_ptr<MemoryStore>> TryImport(const std::filesystem::path& file,
                                               const std::optional<std::filesystem::path>& folder,
                                               const StoreOptions& options, const MemoryStore::Acceptance& accepts) {
  EVERLONG_ASSIGN_OR_RETURN(ExportReader reader, ExportReader::Begin(file));
  EVERLONG_ASSIGN_OR_RETURN(const ExportReader::Piece first, reader.Next());
  if (first.type != Chunk::kManifest) return reader.Corrupt("it does not begin with a manifest");
  const std::string_view text(reinterpret_cast<const char*>(first.body.data()), first.body.size());
  EVERLONG_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text, file.string()));
  manifest.format_version = kFormatVersion;
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, Store::MakeUnfinished(folder, manifest, options));
  EVERLONG_RETURN_IF_ERROR(Importer(reader, *store).TakeAll());
  if (accepts) EVERLONG_RETURN_IF_ERROR(accepts(*store));
  // Open it like any other memory, so that ids go on where they were.
  EVERLONG_RETURN_IF_ERROR(store->FinishMaking());
  return std::unique_ptr<MemoryStore>(std::move(store));
}

}  // namespace

Result<std::unique_ptr<MemoryStore>> MemoryStore::Import(const std::filesystem::path& file,
                                                         const std::optional<std::filesystem::path>& folder,
                                                         const StoreOptions& options, const Acceptance& accepts) {
  return OrOutOfMemory([&] { return TryImport(file, folder, options, accepts); });
}

}  // namespace everlong::store
