// The host-memory store: blocks of a memory, in RAM or in a folder (both designs, 2.3; architecture.md "A memory on
// disk").
//
//   alice.everlong/  manifest.json  catalog.sqlite  segments/NNNNNN.kvseg  LOCK
//
// A block is acknowledged by Append only after its payload is durable (fsync of the segment) and its catalog row is
// committed, in that order: a crash between the two leaves bytes that no row names, never a row without bytes.
// The store knows shapes and checksums, not meaning. All methods are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/base/token_span.h"
#include "everlong/store/manifest.h"

namespace everlong::store {

struct BlockInfo {
  int64_t id = 0;
  int64_t stream = 0;       // which stream of tokens the span counts in
  TokenSpan span;           // of the stream
  int32_t sink_tokens = 0;  // how many of its first tokens were the stream's sinks
  std::string source;       // what the caller called the text; "" for a conversation
  double created_at = 0;    // seconds since 1970, UTC
  std::vector<std::string> tags;
  int32_t pages = 0;
  int64_t payload_bytes = 0;
};

// What Append takes; everything is copied before it returns.
struct BlockDraft {
  int64_t stream = 0;
  TokenSpan span;
  int32_t sink_tokens = 0;
  std::string source;
  double created_at = 0;
  std::vector<std::string> tags;
  std::span<const int32_t> token_ids;   // [span.size()]
  std::span<const std::byte> payload;   // the pages, one after the other
  std::span<const int64_t> page_bytes;  // [pages], sums to payload.size(); each a multiple of geometry.layers
};

// Parts [first_part, first_part + parts) of one page; out.size() is exactly their bytes.
struct PageRead {
  int64_t block = 0;
  int32_t page = 0;
  int32_t first_part = 0;
  int32_t parts = 0;
  std::span<std::byte> out;
};

struct StoreStats {
  int64_t blocks = 0;
  int64_t pages = 0;
  int64_t tokens = 0;
  int64_t payload_bytes = 0;
  int64_t disk_bytes = 0;  // everything in the folder; 0 for a memory in RAM
};

struct StoreOptions {
  int64_t segment_bytes = int64_t{1} << 30;  // a segment file takes no further block past this size
};

class MemoryStore {
 public:
  // A new memory: in RAM when `folder` is empty, else in that folder (created 0700; kAlreadyExists when it holds one).
  static Result<std::unique_ptr<MemoryStore>> Create(const std::optional<std::filesystem::path>& folder,
                                                     const Manifest& manifest, const StoreOptions& options = {});
  // An existing memory. kNotFound, kCorrupt, kNewerFormat, kBusy (another writer; the message names its pid and host).
  // A read-only opener takes no lock and sees the state committed when each call is made.
  static Result<std::unique_ptr<MemoryStore>> Open(const std::filesystem::path& folder, bool read_only,
                                                   const StoreOptions& options = {});

  virtual ~MemoryStore() = default;

  // The new block's id: 1, 2, 3 ... in order of appending, never reused.
  virtual Result<int64_t> Append(const BlockDraft& draft) = 0;
  [[nodiscard]] virtual Result<std::vector<BlockInfo>> Blocks() const = 0;  // by id
  [[nodiscard]] virtual Result<BlockInfo> Block(int64_t id) const = 0;
  [[nodiscard]] virtual Result<std::vector<int32_t>> TokenIds(int64_t block) const = 0;
  // Fills every read's buffer, checksum checked on the way in. kNotFound, kCorrupt (names block, page, part and file).
  [[nodiscard]] virtual Status ReadPages(std::span<const PageRead> reads) const = 0;
  // Gone from every later read of this store and of later openers. Unknown ids are kNotFound and nothing is forgotten.
  virtual Status Forget(std::span<const int64_t> blocks) = 0;
  virtual Status SetAttribute(const std::string& key, const std::string& value) = 0;  // durable on return
  [[nodiscard]] virtual Manifest manifest() const = 0;
  [[nodiscard]] virtual Result<StoreStats> Stats() const = 0;
  [[nodiscard]] virtual std::optional<std::filesystem::path> folder() const = 0;
  [[nodiscard]] virtual bool read_only() const = 0;
};

}  // namespace everlong::store
