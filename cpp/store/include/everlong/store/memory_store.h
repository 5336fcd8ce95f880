// The store of a memory's blocks, in RAM or in a folder (docs/architecture.md, "A memory on disk").
//
//   alice.everlong/  manifest.json  catalog.sqlite  segments/NNNNNN.kvseg  files/NAME  index/  LOCK
//
// A block is acknowledged only after its payload is durable (fsync of the segment) and then its catalog row is
// committed. So a crash between the two leaves bytes that no row names, never a row without bytes. The store knows
// shapes and checksums, not meaning. All methods are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/role.h"
#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/store/graph.h"
#include "everlong/store/manifest.h"
#include "everlong/store/tensor.h"

namespace everlong::store {

// A folder of the memory for data that can be rebuilt from the rest. The store only keeps the name free.
inline constexpr const char* kIndexFolder = "index";

// Block ids lie from 1 to this. Ids of what belongs to a block's pages begin with the block's id (os/page_vectors.cc).
inline constexpr int64_t kLargestBlockId = (int64_t{1} << 35) - 1;

struct BlockInfo {
  int64_t id = 0;
  int64_t stream = 0;       // the stream of the span
  TokenSpan span;           // of the stream
  int32_t sink_tokens = 0;  // how many of its first tokens were the stream's sinks
  std::string source;       // the caller's name of the text; "" for a conversation
  double created_at = 0;    // seconds since 1970, UTC
  std::vector<std::string> tags;
  int32_t pages = 0;          // of kv; 0 without
  int64_t payload_bytes = 0;  // of kv
  Role role = Role::kRead;    // of all its tokens
  uint32_t token_crc = 0;     // CRC-32C of its token ids
};

// Which blocks to return. A field that is not set excludes nothing.
struct BlockFilter {
  std::optional<std::string> source;
  std::optional<std::string> tag;
  std::optional<double> since;    // created_at >= since
  std::optional<double> before;   // created_at < before
  std::optional<Roles> roles;     // any of these
  std::optional<int64_t> behind;  // id > behind. No row of another block is read
};

// A block to Submit. Everything is copied before Submit returns, except a payload with an owner.
struct BlockDraft {
  int64_t stream = 0;
  TokenSpan span;
  int32_t sink_tokens = 0;
  std::string source;
  double created_at = 0;
  std::vector<std::string> tags;
  std::span<const int32_t> token_ids;  // [span.size()]
  std::span<const std::byte> payload;  // kv: the pages, one after the other; empty: no kv
  // Keeps `payload` alive in its place until the block is stored. Nobody may change the payload meanwhile.
  std::shared_ptr<const void> payload_owner;
  std::span<const int64_t> page_bytes;  // [pages], sums to payload.size(); each a multiple of geometry.layers
  std::span<const TensorView> tensors;  // small tensors of the block; tensor.h has the limits
  GraphChange graph;                    // committed with the block; kThisBlock stands for its node
  Role role = Role::kRead;
};

// Check what every store requires of a block besides its payload. kInvalidArgument names what does not fit.
Status ValidateBlock(const BlockDraft& draft);

// A read of parts [first_part, first_part + parts) of one page. out.size() is exactly their bytes.
struct PageRead {
  int64_t block = 0;
  int32_t page = 0;
  int32_t first_part = 0;
  int32_t parts = 0;
  std::span<std::byte> out;
};

// Reads under way. Destroy it before the store and before the buffers that it fills: its destructor waits.
class PendingReads {
 public:
  virtual ~PendingReads() = default;
  // Wait until every buffer is filled, or return the first failure in the order of the reads, again on a second call.
  virtual Status Wait() = 0;
};

struct StoreStats {
  int64_t blocks = 0;
  int64_t pages = 0;
  int64_t tokens = 0;
  int64_t payload_bytes = 0;
  std::map<std::string, int64_t> tensor_bytes;  // of the blocks' tensors, by their names
  int64_t graph_nodes = 0;
  int64_t graph_edges = 0;
  int64_t disk_bytes = 0;  // everything in the folder; 0 for a memory in RAM
  int64_t dead_bytes = 0;  // of the segments: what Compact would give back, and a block that a file with holes may cost
  // In RAM now, besides the indexes: payload, the catalog, and all other files of a memory in RAM.
  int64_t host_bytes = 0;
  int64_t catalog_bytes = 0;  // of those: a catalog in RAM, else SQLite's cache of it; and rows that are known
  int64_t index_bytes = 0;    // the value of SetIndexBytes
};

// Damage that a scrub found.
struct Damage {
  int64_t block = 0;  // 0 where no block can be named
  std::string what;   // names page, part and file
};
struct VerifyReport {
  int64_t blocks = 0;   // that were looked at
  int64_t records = 0;  // pages of kv and records of tensors that were read back and checked
  int64_t bytes = 0;    // of those records' payload
  int64_t nodes = 0;    // of the graph, and its edges
  int64_t edges = 0;
  std::vector<Damage> damage;
  std::vector<int64_t> dropped;  // blocks that a repair removed
};

// The share of StoreOptions::host_bytes that payload gets however large the indexes are: one in so many.
inline constexpr int64_t kLeastPayloadShare = 8;

struct StoreOptions {
  int64_t segment_bytes = int64_t{1} << 30;  // a segment file takes no further block past this size
  // The RAM that a memory may take: indexes (SetIndexBytes), catalog, payload. A memory in RAM holds all of it there,
  // and refuses blocks, tensors, tags and files when it is full. A memory in a folder keeps up to an eighth of it, and
  // at most 10 MiB, of its catalog. A cache tier of payload gets what that and the indexes leave, or a
  // kLeastPayloadShare-th where that is more. None: half of the RAM that is free for this process when the memory is
  // opened. In a container that is what the container's limit leaves.
  std::optional<int64_t> host_bytes = std::nullopt;
  // Blocks that are not durable yet hold at most this much, or one block. Submit waits when it is reached.
  int64_t queue_bytes = int64_t{256} << 20;
};

class StoreState;  // private

class MemoryStore {
 public:
  // Make a new memory: in RAM when `folder` is empty, else in that folder (created 0700). kAlreadyExists when the
  // folder holds a memory, or something else under a name that a memory uses.
  static Result<std::unique_ptr<MemoryStore>> Create(const std::optional<std::filesystem::path>& folder,
                                                     const Manifest& manifest, const StoreOptions& options = {});
  // Open an existing memory. kNotFound, kCorrupt, kNewerFormat, kBusy (another writer; the message names its pid and
  // host). A read-only opener takes no lock and sees the state committed when each call is made. A writer upgrades a
  // memory of an older format. A read-only opener reads it as it is. What lies in the folder leads nowhere: a link or a
  // mounted folder in the place of what is read or written is kCorrupt, then or when it is needed. So is another's name
  // of a file that is to be written. A link named as the lock or a temporary file is nobody's, and a writer removes it.
  static Result<std::unique_ptr<MemoryStore>> Open(const std::filesystem::path& folder, bool read_only,
                                                   const StoreOptions& options = {});
  // Make a new memory, as Create does, with all that Export wrote into `file`. Blocks keep their ids. kCorrupt when the
  // file is damaged or cut short. `accepts`, if given, may refuse it all. Nothing is made on an error.
  using Acceptance = std::function<Status(const MemoryStore& made)>;
  static Result<std::unique_ptr<MemoryStore>> Import(const std::filesystem::path& file,
                                                     const std::optional<std::filesystem::path>& folder,
                                                     const StoreOptions& options = {}, const Acceptance& accepts = {});

  // Waits for what was submitted.
  ~MemoryStore();
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  // --- writing. Ids are 1, 2, 3 ... in order of submission, never reused, also when a block could not be stored.

  // Queue a block. It is durable after the next Flush. Submit waits while the queue is full. Blocks that are queued
  // together are committed together. A read of a queued block waits for it. Once a block could not be stored (disk
  // full), Submit fails with the same error until Flush has reported it.
  Result<int64_t> Submit(const BlockDraft& draft);
  // Wait until all submitted blocks are durable, or return the first failure since the last Flush. `lost`, if given,
  // gets the ids that were submitted and are not stored.
  Status Flush(std::vector<int64_t>* lost = nullptr);
  // Wait until all blocks that were submitted before are durable, and return the id of the next one. It waits for the
  // commit that is under way, and for the one that stores them, whatever others submit meanwhile: blocks of several
  // threads share a commit. A block that was lost meanwhile, or since the last Flush, is the error that Flush reports,
  // to every thread that waited for it.
  Result<int64_t> WaitForSubmitted() const;
  // Put tensors of a block. Each replaces the one of its name; the block's other tensors stay. One commit, durable on
  // return. What was replaced leaves RAM at once, and files with Compact. A read beside it gets the tensor of before or
  // the new one. kNotFound, kInvalidArgument.
  Status PutTensors(int64_t block, std::span<const TensorView> tensors);
  // Drop tensors of a block by their names. Those that it does not have change nothing. Their bytes leave RAM at once,
  // and files with Compact.
  Status DropTensors(int64_t block, std::span<const std::string> names);
  // Replace the pages of a block and all of its tags, in one commit, durable on return. The bytes of the old pages stay
  // until Compact. A read that began before may be kBusy once they are gone: ask for the page again. kNotFound,
  // kInvalidArgument.
  Status ReplacePages(int64_t block, std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
                      std::span<const std::string> tags);
  // Add tags of a block behind those it has, each once. One commit, durable on return. kNotFound.
  Status AddTags(int64_t block, std::span<const std::string> tags);
  // Give a block these tags in place of those it has. One commit, durable on return. kNotFound.
  Status SetTags(int64_t block, std::span<const std::string> tags);
  // Change the graph in one commit, durable on return.
  Status ChangeGraph(const GraphChange& change);
  Status SetAttribute(const std::string& key, const std::string& value);  // durable on return
  // Put bytes that belong to the memory as a whole under a name, in place of what is there. Fork and Export copy them.
  // They are not checked when they are read. Durable on return, whole or not at all. kInvalidArgument unless the name
  // is 1 to 64 of a-z, 0-9, _ and ., begins with a letter or digit and does not end with .tmp.
  Status PutFile(const std::string& name, std::span<const std::byte> bytes);

  // Set how much of `host_bytes` the caller's RAM for this memory takes, besides the payload. Payload over what is left
  // leaves the cache tier at once. A memory in RAM keeps what it has and takes no more.
  void SetIndexBytes(int64_t bytes);

  // --- reading

  [[nodiscard]] Result<std::vector<BlockInfo>> Blocks(const BlockFilter& filter) const;  // by id
  [[nodiscard]] Result<std::vector<BlockInfo>> Blocks() const { return Blocks({}); }
  // Visit the blocks, by id, without a list of them in RAM, as long as `visit` returns true. No row behind that is
  // read. A failure of `visit` is returned. `visit` must not call this store.
  using BlockVisitor = std::function<Result<bool>(BlockInfo&& block)>;
  [[nodiscard]] Status VisitBlocks(const BlockFilter& filter, const BlockVisitor& visit) const;
  [[nodiscard]] Result<BlockInfo> Block(int64_t id) const;
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t block) const;
  // In order of name; empty if there are none. kNotFound for an unknown block or tensor; kCorrupt.
  [[nodiscard]] Result<std::vector<TensorInfo>> Tensors(int64_t block) const;
  [[nodiscard]] Result<Tensor> ReadTensor(int64_t block, const std::string& name) const;
  // Return, for each committed block of these ids, both included, that has some of these tensors, a checksum of their
  // names, dtypes, shapes and bytes. No bytes are read.
  [[nodiscard]] Result<std::map<int64_t, uint32_t>> TensorChecksums(int64_t first, int64_t last,
                                                                    std::span<const std::string> names) const;
  // Read what is committed, as of one moment: all of it; a node (kNotFound); the nodes of a kind; the edges of a node.
  [[nodiscard]] Result<Graph> ReadGraph() const;
  [[nodiscard]] Result<GraphNode> Node(int64_t id) const;
  [[nodiscard]] Result<std::vector<GraphNode>> Nodes(NodeKind kind) const;   // by id
  [[nodiscard]] Result<std::vector<int64_t>> NodeIds(NodeKind kind) const;   // ascending; no row is read
  [[nodiscard]] Result<std::vector<GraphEdge>> EdgesOf(int64_t node) const;  // by from, to, kind
  // Return the bytes of each page of a block, all parts. kNotFound, kCorrupt.
  [[nodiscard]] Result<std::vector<int64_t>> PageBytes(int64_t block) const;
  // Fill every read's buffer, and check its checksum. kNotFound, kCorrupt (names block, page, part and file).
  [[nodiscard]] Status ReadPages(std::span<const PageRead> reads) const;
  // Do the same without waiting. What is in the cache tier is there on return. The store's own threads read the rest
  // from disk, or, where it is much, out of a memory in RAM. Wait returns a refusal (kNotFound, kInvalidArgument).
  [[nodiscard]] std::unique_ptr<PendingReads> StartReadPages(std::span<const PageRead> reads) const;

  [[nodiscard]] Result<std::vector<std::byte>> File(const std::string& name) const;  // kNotFound

  // Return how often blocks were forgotten, or dropped by a repair, since the memory was made: one more with each such
  // commit. A reader sees what is committed now, also by another process. It costs one lookup, whatever the memory
  // holds.
  [[nodiscard]] Result<int64_t> Forgettings() const;
  [[nodiscard]] Manifest manifest() const;
  [[nodiscard]] Result<StoreStats> Stats() const;  // the first call counts; for a reader, each first one after a commit
  [[nodiscard]] std::optional<FilePath> folder() const;
  [[nodiscard]] bool read_only() const;
  // kReadOnly, or kIoError when the folder was removed or replaced since it was opened: nothing is written then.
  [[nodiscard]] Status CheckWritable() const;

  // --- life

  // Remove blocks from every later read of this store and of later openers. Their bytes leave RAM at once, and files
  // with Compact. Unknown ids are kNotFound and nothing is forgotten. The blocks' nodes and those nodes' edges go in
  // the same commit. `change` is part of that commit: it updates the centres that they belonged to.
  Status Forget(std::span<const int64_t> blocks, const GraphChange& change);
  Status Forget(std::span<const int64_t> blocks) { return Forget(blocks, {}); }
  // Remove the bytes of forgotten blocks (payload, ids, names) from every file, beside readers. Return how many bytes
  // of segments were given back. Writers wait, and it waits for a Verify or Export. It works on a full disk, because
  // the segments come first.
  Result<int64_t> Compact();
  // Wait for each Verify and Export that goes on now, as Compact would.
  void WaitForPasses();
  // For a full disk: give back the reserve and the payload of forgotten blocks. Return how many bytes of segments.
  Result<int64_t> MakeRoom();
  // Take the reserve again, where the disk has room by now.
  void KeepReserve();
  // Read every byte that the catalog names and check it against every checksum. In a folder that is the memory of one
  // moment: a writer goes on meanwhile, and only Compact waits. In RAM a writer waits while the rows are listed. What
  // is forgotten or replaced meanwhile is no damage. Damage is what was read and is wrong. Where the system refuses to
  // read (kIoError, kCapacity), that error is returned. `repair` goes on with Repair.
  Result<VerifyReport> Verify(bool repair);
  // Look again at what a Verify found, and keep what is whole. It drops blocks that are damaged still, and the report
  // names them. Of a block with damage only in its tensors it drops those tensors. Of the graph it drops what is
  // damaged and every edge that has lost an end. Writers wait. Where the system refuses to read, nothing is dropped.
  // kCorrupt where the catalog's tables stay damaged behind the repair.
  Result<VerifyReport> Repair(VerifyReport found);
  // A second memory in `folder` that begins as this one is: by reflink or hard link where the file system has them,
  // else by copy. Either may then change without the other. kAlreadyExists.
  // `adds` may put more into the folder, before anybody else can write there.
  Status Fork(const std::filesystem::path& folder, const std::function<void(const FilePath& folder)>& adds);
  // All of it, as of one moment, as one file (docs/format.md, "Export"). Writers wait for it only in RAM.
  // kAlreadyExists when there is a file of that name.
  Status Export(const std::filesystem::path& file);

 private:
  explicit MemoryStore(std::unique_ptr<StoreState> state);

  std::unique_ptr<StoreState> state_;
};

}  // namespace everlong::store
