// The bytes of a memory: numbered, append-only segments, in files or in RAM. A segment holds records (record.h). The
// catalog says what they mean, and which of them count. A record never moves while it counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/file.h"
#include "everlong/base/status.h"

namespace everlong::store {

struct SegmentSpot {
  int32_t segment = 0;  // 1, 2, 3 ...
  int64_t offset = 0;   // bytes
};

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// The bytes that count, by segment: ranges in ascending order that do not overlap, with ends at multiples of 4096.
using LiveRanges = std::map<int32_t, std::vector<ByteRange>>;

// The bytes to append: pieces that belong back to back. Used once.
class AppendSource {
 public:
  virtual ~AppendSource() = default;
  [[nodiscard]] virtual size_t bytes() const = 0;
  // Return the pieces.
  virtual std::vector<std::span<const std::byte>> Pieces() = 0;
  // Copy them to `out`, which has their size.
  virtual void CopyTo(std::span<std::byte> out) = 0;
};

// Any thread may call Read, beside the rest. One thread at a time may call the rest.
class SegmentSet {
 public:
  virtual ~SegmentSet() = default;
  // Write the source's pieces behind all that was written before, in one segment. Return where the first begins (a
  // multiple of 4096). Durable after Sync. After an error nothing that was written before has changed, but only Sync
  // says whether it is durable.
  virtual Result<SegmentSpot> Append(AppendSource& source) = 0;
  // Make all that was appended since the last call durable. After an error none of it may be relied on.
  virtual Status Sync() = 0;
  // Fill `out`. kCorrupt when the segment is missing or too short, kIoError when the system refuses.
  [[nodiscard]] virtual Status Read(SegmentSpot spot, std::span<std::byte> out) const = 0;
  // Check that the segment has so many bytes from there on, before anybody makes room for them. kCorrupt, kIoError.
  [[nodiscard]] virtual Status Require(SegmentSpot spot, int64_t bytes) const = 0;
  // Remove all bytes but these, beside readers of these. Durable on return. Return how many bytes were given back.
  virtual Result<int64_t> KeepOnly(const LiveRanges& live) = 0;
  // In RAM: give back the append that `spot` lies in, beside readers of it.
  virtual void Free([[maybe_unused]] SegmentSpot spot) {}
  // Return the bytes that the segments take, on disk or in RAM.
  [[nodiscard]] virtual Result<int64_t> Bytes() const = 0;
  // Return the name of a segment for messages: its path, or "segment N in RAM".
  [[nodiscard]] virtual std::string Name(int32_t segment) const = 0;
};

std::unique_ptr<SegmentSet> MakeRamSegments();

// Segments as files `folder`/NNNNNN.kvseg.
class SegmentFiles final : public SegmentSet {
 public:
  // For reading only.
  explicit SegmentFiles(FilePath folder) : folder_(std::move(folder)) {}
  // Open for a writer, which holds the memory's lock. `newest_named` is the highest number that the catalog names: the
  // number of a lost file is never given again. A segment is full at `segment_bytes`; a single append may be larger.
  // Bytes that a crash left behind the last record are skipped, never cut: only the catalog knows whether they count.
  static Result<std::unique_ptr<SegmentFiles>> OpenForWriting(const FilePath& folder, int32_t newest_named,
                                                              int64_t segment_bytes);

  Result<SegmentSpot> Append(AppendSource& source) override;
  Status Sync() override;
  [[nodiscard]] Status Read(SegmentSpot spot, std::span<std::byte> out) const override;
  [[nodiscard]] Status Require(SegmentSpot spot, int64_t bytes) const override;
  Result<int64_t> KeepOnly(const LiveRanges& live) override;
  [[nodiscard]] Result<int64_t> Bytes() const override;
  [[nodiscard]] std::string Name(int32_t segment) const override { return Path(segment).string(); }

  // Make the next append begin a new segment.
  void Seal() { active_.reset(); }
  // Open files anew: a writer may have replaced one that was read before.
  void Reopen() const;
  // Hold a lock that keeps writers from removing a segment's bytes.
  [[nodiscard]] Result<UniqueFd> HoldRemovals() const;
  // Clone these segments into another memory's folder. A file that a writer may still append to is never linked: with
  // `newest_is_sealed` false that is the newest one. kCorrupt where one is missing.
  [[nodiscard]] Status CloneInto(const FilePath& folder, std::span<const int64_t> segments,
                                 bool newest_is_sealed) const;

 private:
  [[nodiscard]] FilePath Path(int32_t segment) const;
  [[nodiscard]] Result<std::map<int32_t, FilePath>> Files() const;
  // Remove what a crash left of copies that were to replace a segment.
  [[nodiscard]] Status RemoveLeftovers() const;
  Status StartWriting(int32_t newest_named, int64_t segment_bytes);
  Status StartSegment();
  [[nodiscard]] Status Ends(SegmentSpot spot, int64_t size, int64_t bytes) const;
  Status SyncActive();
  Status Remove(int32_t segment, const UniqueFd& file, bool linked);
  Status EraseOutside(int32_t segment, const UniqueFd& file, bool linked, const std::vector<ByteRange>& live);
  [[nodiscard]] Result<std::shared_ptr<const UniqueFd>> FileOf(int32_t segment) const;

  FilePath folder_;
  int64_t segment_bytes_ = 0;
  std::optional<UniqueFd> active_;  // the segment that takes appends
  bool unsynced_ = false;           // whether it holds bytes that are not durable
  Status sync_failure_;             // of any bytes appended since the last Sync; ok if there was none
  int32_t newest_ = 0;              // highest number given so far
  int64_t end_ = 0;                 // where the next append goes in `active_`
  mutable std::mutex mutex_;        // guards open_
  mutable std::map<int32_t, std::shared_ptr<const UniqueFd>> open_;
};

}  // namespace everlong::store
