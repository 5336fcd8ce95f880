// The bytes of a memory: numbered, append-only segments, in files or in RAM. A segment holds records (record.h); what
// they mean, and which of them count, is the catalog's to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "everlong/base/status.h"

namespace everlong::store {

struct SegmentSpot {
  int32_t segment = 0;  // 1, 2, 3 ...
  int64_t offset = 0;   // bytes
};

// Reads are safe from every thread beside an Append; Append is one thread at a time.
class SegmentSet {
 public:
  virtual ~SegmentSet() = default;
  // Writes the pieces back to back behind all that was written before, in one segment; returns where the first begins
  // (a multiple of 4096). Durable on return. After an error nothing that was written before has changed.
  virtual Result<SegmentSpot> Append(std::span<const std::span<const std::byte>> pieces) = 0;
  // Fills `out`. kCorrupt when the segment is missing or too short, kIoError when the system refuses.
  [[nodiscard]] virtual Status Read(SegmentSpot spot, std::span<std::byte> out) const = 0;
  // What messages call a segment: its path, or "segment N in RAM".
  [[nodiscard]] virtual std::string Name(int32_t segment) const = 0;
};

std::unique_ptr<SegmentSet> MakeRamSegments();

// Segments as files `folder`/NNNNNN.kvseg, for reading alone.
std::unique_ptr<SegmentSet> OpenSegmentFiles(const std::filesystem::path& folder);
// The same for a writer, which holds the memory's lock. `newest_named` is the highest number that the catalog names: a
// lost file's number is never given to another. A segment is full at `segment_bytes` (a single append may be larger).
// Bytes that a crash left behind the last record are skipped, never cut: they are not ours to judge here.
Result<std::unique_ptr<SegmentSet>> OpenSegmentFilesForWriting(const std::filesystem::path& folder,
                                                               int32_t newest_named, int64_t segment_bytes);

}  // namespace everlong::store
