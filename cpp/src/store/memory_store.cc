#include "everlong/store/memory_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <system_error>
#include <utility>

#include "catalog.h"
#include "everlong/base/crc32c.h"
#include "everlong/base/parallel_for.h"
#include "file.h"
#include "manifest_file.h"
#include "record.h"
#include "segment_set.h"
#include "writer_lock.h"

namespace everlong::store {
namespace {

constexpr const char* kCatalogFile = "catalog.sqlite";
constexpr const char* kSegmentFolder = "segments";

// "[3, 5)".
std::string Text(TokenSpan span) {
  std::string text("[");
  return text.append(std::to_string(span.begin)).append(", ").append(std::to_string(span.end)).append(")");
}

Status ValidateDraft(const BlockDraft& draft, const Geometry& geometry) {
  const TokenSpan& span = draft.span;
  const auto bad = [](const std::string& what) { return InvalidArgumentError("block draft: " + what); };
  if (span.begin < 0 || span.empty()) return bad("span is " + Text(span) + ", expected tokens of a stream");
  if (span.size() > std::numeric_limits<int32_t>::max()) return bad("span " + Text(span) + " is too long");
  if (static_cast<int64_t>(draft.token_ids.size()) != span.size()) {
    return bad(std::to_string(draft.token_ids.size()) + " token ids for the span " + Text(span));
  }
  if (draft.sink_tokens < 0 || draft.sink_tokens > span.size()) {
    return bad("sink_tokens is " + std::to_string(draft.sink_tokens) + " in the span " + Text(span));
  }
  if (!std::isfinite(draft.created_at)) return bad("created_at is not finite");
  const int64_t pages = (span.size() + geometry.page_tokens - 1) / geometry.page_tokens;
  if (static_cast<int64_t>(draft.page_bytes.size()) != pages) {
    return bad(std::to_string(draft.page_bytes.size()) + " pages for the span " + Text(span) + ", expected " +
               std::to_string(pages) + " of " + std::to_string(geometry.page_tokens) + " tokens");
  }
  auto left = static_cast<int64_t>(draft.payload.size());
  for (size_t page = 0; page < draft.page_bytes.size(); ++page) {
    const int64_t bytes = draft.page_bytes[page];
    if (bytes <= 0 || bytes % geometry.layers != 0) {
      return bad("page " + std::to_string(page) + " has " + std::to_string(bytes) +
                 " bytes, expected a positive multiple of " + std::to_string(geometry.layers) + " layers");
    }
    if (bytes > left) {
      return bad("payload has " + std::to_string(draft.payload.size()) + " bytes, too few for its pages");
    }
    left -= bytes;
  }
  if (left != 0) {
    return bad("payload has " + std::to_string(draft.payload.size()) + " bytes, " + std::to_string(left) +
               " more than its pages");
  }
  return OkStatus();
}

// The records of a block: headers made here, parts where the caller has them.
class BlockRecords {
 public:
  BlockRecords(const BlockDraft& draft, const Geometry& geometry) : parts_(geometry.layers) {
    const auto pages = static_cast<int64_t>(draft.page_bytes.size());
    headers_.resize(draft.page_bytes.size());
    payloads_.resize(draft.page_bytes.size());
    size_t offset = 0;
    for (size_t page = 0; page < payloads_.size(); ++page) {
      const auto bytes = static_cast<size_t>(draft.page_bytes[page]);
      payloads_[page] = draft.payload.subspan(offset, bytes);
      offset += bytes;
      headers_[page].page = static_cast<int32_t>(page);
      headers_[page].tokens = static_cast<int32_t>(std::min<int64_t>(
          geometry.page_tokens, draft.span.size() - static_cast<int64_t>(page) * geometry.page_tokens));
      headers_[page].part_bytes = draft.page_bytes[page] / parts_;
    }
    ParallelFor(0, pages, 1, [this](int64_t first, int64_t last) {
      for (auto page = static_cast<size_t>(first); page < static_cast<size_t>(last); ++page) {
        headers_[page].part_crcs = PartChecksums(payloads_[page], parts_);
      }
    });
  }

  // Where the pages lie once the records begin at `spot`.
  [[nodiscard]] std::vector<PageRow> Rows(SegmentSpot spot) const {
    std::vector<PageRow> rows;
    rows.reserve(headers_.size());
    for (const RecordHeader& header : headers_) {
      rows.push_back({spot.segment, spot.offset, header.part_bytes, header.part_crcs});
      spot.offset += RecordBytes(parts_, header.part_bytes);
    }
    return rows;
  }

  Result<SegmentSpot> Write(int64_t block, SegmentSet& segments) {
    static constexpr std::array<std::byte, kRecordAlignment> kPadding = {};
    std::vector<std::vector<std::byte>> encoded;
    encoded.reserve(headers_.size());
    std::vector<std::span<const std::byte>> pieces;
    pieces.reserve(3 * headers_.size());
    for (size_t page = 0; page < headers_.size(); ++page) {
      headers_[page].block = block;
      encoded.push_back(EncodeRecordHeader(headers_[page]));
      const auto bytes = static_cast<int64_t>(payloads_[page].size());
      pieces.emplace_back(encoded.back());
      pieces.emplace_back(payloads_[page]);
      pieces.emplace_back(std::span(kPadding).first(static_cast<size_t>(AlignRecord(bytes) - bytes)));
    }
    return segments.Append(pieces);
  }

 private:
  int64_t parts_;
  std::vector<RecordHeader> headers_;
  std::vector<std::span<const std::byte>> payloads_;
};

std::string Text(const PageRead& read) {
  return "block " + std::to_string(read.block) + " page " + std::to_string(read.page);
}

Status ValidateRead(const PageRead& read, const PageRow& row) {
  const auto parts = static_cast<int64_t>(row.part_crcs.size());
  if (read.first_part < 0 || read.parts <= 0 || int64_t{read.first_part} + read.parts > parts) {
    return InvalidArgumentError("read of " + Text(read) + ": parts " + std::to_string(read.first_part) + " + " +
                                std::to_string(read.parts) + ", it has " + std::to_string(parts));
  }
  if (static_cast<int64_t>(read.out.size()) != read.parts * row.part_bytes) {
    return InvalidArgumentError("read of " + Text(read) + ": the buffer has " + std::to_string(read.out.size()) +
                                " bytes, " + std::to_string(read.parts) + " parts have " +
                                std::to_string(read.parts * row.part_bytes));
  }
  return OkStatus();
}

class Store final : public MemoryStore {
 public:
  struct Rooms {
    std::optional<std::filesystem::path> folder;
    bool read_only = false;
    std::optional<WriterLock> lock;
    std::unique_ptr<Catalog> catalog;
    std::unique_ptr<SegmentSet> segments;
    Manifest manifest;
  };
  explicit Store(Rooms rooms) : rooms_(std::move(rooms)), geometry_(rooms_.manifest.geometry) {}

  Result<int64_t> Append(const BlockDraft& draft) override {
    EVERLONG_RETURN_IF_ERROR(CheckWritable());
    EVERLONG_RETURN_IF_ERROR(ValidateDraft(draft, geometry_));
    BlockRecords records(draft, geometry_);
    const std::scoped_lock lock(append_mutex_);
    EVERLONG_ASSIGN_OR_RETURN(const int64_t id, rooms_.catalog->NextBlockId());
    EVERLONG_ASSIGN_OR_RETURN(const SegmentSpot spot, records.Write(id, *rooms_.segments));
    EVERLONG_RETURN_IF_ERROR(rooms_.catalog->Insert(id, draft, records.Rows(spot)));
    return id;
  }

  [[nodiscard]] Result<std::vector<BlockInfo>> Blocks() const override { return rooms_.catalog->Blocks(); }
  [[nodiscard]] Result<BlockInfo> Block(int64_t id) const override { return rooms_.catalog->Block(id); }
  [[nodiscard]] Result<std::vector<int32_t>> TokenIds(int64_t block) const override {
    return rooms_.catalog->TokenIds(block);
  }

  [[nodiscard]] Status ReadPages(std::span<const PageRead> reads) const override {
    std::vector<PageKey> keys;
    keys.reserve(reads.size());
    for (const PageRead& read : reads) keys.push_back({read.block, read.page});
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRow> rows, rooms_.catalog->Locate(keys));
    for (size_t i = 0; i < reads.size(); ++i) EVERLONG_RETURN_IF_ERROR(ValidateRead(reads[i], rows[i]));
    std::vector<Status> failures(reads.size());
    ParallelFor(0, static_cast<int64_t>(reads.size()), 1, [&](int64_t first, int64_t last) {
      for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
        failures[i] = ReadOne(reads[i], rows[i]);
      }
    });
    for (Status& failure : failures) EVERLONG_RETURN_IF_ERROR(std::move(failure));
    return OkStatus();
  }

  Status Forget(std::span<const int64_t> blocks) override {
    EVERLONG_RETURN_IF_ERROR(CheckWritable());
    return rooms_.catalog->Forget(blocks);
  }

  Status SetAttribute(const std::string& key, const std::string& value) override {
    EVERLONG_RETURN_IF_ERROR(CheckWritable());
    const std::scoped_lock lock(manifest_mutex_);
    Manifest changed = rooms_.manifest;
    changed.attributes[key] = value;
    if (rooms_.folder) EVERLONG_RETURN_IF_ERROR(WriteManifest(*rooms_.folder, changed));
    rooms_.manifest = std::move(changed);
    return OkStatus();
  }

  [[nodiscard]] Manifest manifest() const override {
    const std::scoped_lock lock(manifest_mutex_);
    if (rooms_.read_only) {
      // A writer beside us may have set attributes; while its file cannot be read the last one that could be stands.
      if (Result<Manifest> now = ReadManifest(*rooms_.folder); now.ok()) rooms_.manifest = std::move(now).value();
    }
    return rooms_.manifest;
  }

  [[nodiscard]] Result<StoreStats> Stats() const override {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, rooms_.catalog->Blocks());
    StoreStats stats;
    stats.blocks = static_cast<int64_t>(blocks.size());
    for (const BlockInfo& block : blocks) {
      stats.pages += block.pages;
      stats.tokens += block.span.size();
      stats.payload_bytes += block.payload_bytes;
    }
    if (rooms_.folder) {
      EVERLONG_ASSIGN_OR_RETURN(stats.disk_bytes, DiskBytes());
    }
    return stats;
  }

  [[nodiscard]] std::optional<std::filesystem::path> folder() const override { return rooms_.folder; }
  [[nodiscard]] bool read_only() const override { return rooms_.read_only; }

 private:
  [[nodiscard]] Status CheckWritable() const {
    if (!rooms_.read_only) return OkStatus();
    return ReadOnlyError("memory '" + rooms_.folder->string() + "' was opened for reading");
  }

  [[nodiscard]] Status ReadOne(const PageRead& read, const PageRow& row) const {
    const auto parts = static_cast<int64_t>(row.part_crcs.size());
    const SegmentSpot spot{row.segment, row.offset + RecordHeaderBytes(parts) + read.first_part * row.part_bytes};
    if (const Status status = rooms_.segments->Read(spot, read.out); !status.ok()) {
      return {status.code(), Text(read) + ": " + status.message()};
    }
    const auto part_bytes = static_cast<size_t>(row.part_bytes);
    for (size_t i = 0; i < static_cast<size_t>(read.parts); ++i) {
      const size_t part = static_cast<size_t>(read.first_part) + i;
      if (Crc32c(read.out.subspan(i * part_bytes, part_bytes)) == row.part_crcs[part]) continue;
      return CorruptError(Text(read) + " part " + std::to_string(part) + ": checksum mismatch in '" +
                          rooms_.segments->Name(spot.segment) + "' at byte " +
                          std::to_string(spot.offset + static_cast<int64_t>(i * part_bytes)) +
                          "; other blocks are readable");
    }
    return OkStatus();
  }

  [[nodiscard]] Result<int64_t> DiskBytes() const {
    std::error_code error;
    int64_t bytes = 0;
    std::filesystem::recursive_directory_iterator entry(*rooms_.folder, error);
    for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
      // A file that a writer removed meanwhile counts nothing.
      std::error_code gone;
      if (!entry->is_regular_file(gone)) continue;
      const uintmax_t size = entry->file_size(gone);
      if (!gone) bytes += static_cast<int64_t>(size);
    }
    if (error) return ErrnoError("cannot list", *rooms_.folder, error.value());
    return bytes;
  }

  mutable Rooms rooms_;      // all but the manifest is fixed
  const Geometry geometry_;  // the manifest's, which never changes
  std::mutex append_mutex_;
  mutable std::mutex manifest_mutex_;
};

bool HoldsSegments(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entry(folder / kSegmentFolder, error);
  return !error && entry != std::filesystem::directory_iterator();
}

Result<std::unique_ptr<MemoryStore>> CreateInFolder(const std::filesystem::path& folder, const Manifest& manifest,
                                                    const StoreOptions& options) {
  const auto exists = [&folder] {
    std::error_code error;
    return std::filesystem::exists(folder / kManifestFile, error) || HoldsSegments(folder);
  };
  const std::string refusal = "there is a memory in '" + folder.string() + "' already";
  if (exists()) return AlreadyExistsError(refusal);
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder));
  EVERLONG_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Acquire(folder));
  if (exists()) return AlreadyExistsError(refusal);
  // Without manifest and segments a catalog is what a crash left of an earlier Create; no block was ever in it.
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::error_code error;
    std::filesystem::remove(folder / (std::string(kCatalogFile) + suffix), error);
    if (error) return ErrnoError("cannot remove", folder / kCatalogFile, error.value());
  }
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder / kSegmentFolder));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::Create(folder / kCatalogFile));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<SegmentSet> segments,
                            OpenSegmentFilesForWriting(folder / kSegmentFolder, 0, options.segment_bytes));
  EVERLONG_RETURN_IF_ERROR(SyncFolder(folder));
  // Last, for a folder with a manifest is a memory.
  EVERLONG_RETURN_IF_ERROR(WriteManifest(folder, manifest));
  return std::unique_ptr<MemoryStore>(
      new Store({folder, false, std::move(lock), std::move(catalog), std::move(segments), manifest}));
}

Status ValidateOptions(const StoreOptions& options) {
  if (options.segment_bytes > 0) return OkStatus();
  return InvalidArgumentError("segment_bytes is " + std::to_string(options.segment_bytes) + ", expected at least 1");
}

}  // namespace

Result<std::unique_ptr<MemoryStore>> MemoryStore::Create(const std::optional<std::filesystem::path>& folder,
                                                         const Manifest& manifest, const StoreOptions& options) {
  EVERLONG_RETURN_IF_ERROR(ValidateManifest(manifest));
  EVERLONG_RETURN_IF_ERROR(ValidateOptions(options));
  if (manifest.format_version != kFormatVersion) {
    return InvalidArgumentError("manifest: format_version is " + std::to_string(manifest.format_version) +
                                ", expected " + std::to_string(kFormatVersion));
  }
  if (folder) return CreateInFolder(*folder, manifest, options);
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::CreateInRam());
  return std::unique_ptr<MemoryStore>(
      new Store({std::nullopt, false, std::nullopt, std::move(catalog), MakeRamSegments(), manifest}));
}

Result<std::unique_ptr<MemoryStore>> MemoryStore::Open(const std::filesystem::path& folder, bool read_only,
                                                       const StoreOptions& options) {
  EVERLONG_RETURN_IF_ERROR(ValidateOptions(options));
  Result<Manifest> read = ReadManifest(folder);
  if (read.status().code() == StatusCode::kNotFound && HoldsSegments(folder)) {
    return CorruptError("memory '" + folder.string() + "' has segments but its " + kManifestFile + " is missing");
  }
  EVERLONG_ASSIGN_OR_RETURN(Manifest manifest, std::move(read));
  if (read_only) {
    EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::Open(folder / kCatalogFile, true));
    return std::unique_ptr<MemoryStore>(new Store({folder, true, std::nullopt, std::move(catalog),
                                                   OpenSegmentFiles(folder / kSegmentFolder), std::move(manifest)}));
  }
  EVERLONG_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Acquire(folder));
  // Once more under the lock: the last writer may have replaced it since.
  EVERLONG_ASSIGN_OR_RETURN(manifest, ReadManifest(folder));
  std::error_code error;
  std::filesystem::remove(folder / kManifestTemporary, error);
  if (error) return ErrnoError("cannot remove", folder / kManifestTemporary, error.value());
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog, Catalog::Open(folder / kCatalogFile, false));
  EVERLONG_ASSIGN_OR_RETURN(const int32_t newest, catalog->NewestSegment());
  EVERLONG_RETURN_IF_ERROR(MakeFolder(folder / kSegmentFolder));
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<SegmentSet> segments,
                            OpenSegmentFilesForWriting(folder / kSegmentFolder, newest, options.segment_bytes));
  return std::unique_ptr<MemoryStore>(
      new Store({folder, false, std::move(lock), std::move(catalog), std::move(segments), std::move(manifest)}));
}

}  // namespace everlong::store
