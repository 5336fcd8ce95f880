// Write the records of a block into a segment. Headers are made here; parts stay where the caller has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "catalog.h"
#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"
#include "read_threads.h"
#include "record.h"
#include "segment_set.h"

namespace everlong::store {

// Return kInvalidArgument that names what does not fit.
Status ValidateDraft(const BlockDraft& draft, const Geometry& geometry);
// Do the same for the pages of a block of `span`.
Status ValidatePages(TokenSpan span, std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
                     const Geometry& geometry);

class BlockRecords final : private AppendSource {
 public:
  // `span` is the block's. What is added must stay in its place until it was written.
  BlockRecords(TokenSpan span, ReadThreads& threads) : span_(span), threads_(threads) {}
  // Add the pages of its kv, which were checked before.
  void AddPages(std::span<const std::byte> payload, std::span<const int64_t> page_bytes, const Geometry& geometry);
  // Add all of its tensors: a safetensors file.
  void AddTensors(std::span<const std::byte> file);

  // Return the bytes that the records take in a segment.
  [[nodiscard]] size_t bytes() const override;
  // Append the records in the order in which they were added, in one piece, with the checksum of each part. They are
  // durable after segments.Sync(). Return the place of each.
  Result<std::vector<PageRow>> Write(int64_t block, SegmentSet& segments);

 private:
  std::vector<std::span<const std::byte>> Pieces() override;
  void CopyTo(std::span<std::byte> out) override;

  // Compute the checksums, of many parts on many threads. It also copies the bytes to `out`, the place of all records,
  // if that is not empty.
  void ReadParts(std::span<std::byte> out);

  TokenSpan span_;
  ReadThreads& threads_;
  std::vector<RecordHeader> headers_;
  std::vector<std::span<const std::byte>> payloads_;
  std::vector<std::vector<std::byte>> encoded_;  // headers, for Pieces
};

}  // namespace everlong::store
