// The records of a block on their way into a segment: headers made here, parts where the caller has them.
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

// kInvalidArgument naming what does not fit.
Status ValidateDraft(const BlockDraft& draft, const Geometry& geometry);

class BlockRecords final : private AppendSource {
 public:
  // `span` is the block's; what is added stays in its place until it was written.
  BlockRecords(TokenSpan span, ReadThreads& threads) : span_(span), threads_(threads) {}
  // The pages of its kv, checked before.
  void AddPages(std::span<const std::byte> payload, std::span<const int64_t> page_bytes, const Geometry& geometry);
  // All of its tensors: a safetensors file.
  void AddTensors(std::span<const std::byte> file);

  // Appends the records in the order in which they were added, in one piece, with the checksum of each part; durable
  // after segments.Sync(). Returns where each lies.
  Result<std::vector<PageRow>> Write(int64_t block, SegmentSet& segments);

 private:
  [[nodiscard]] size_t bytes() const override;
  std::vector<std::span<const std::byte>> Pieces() override;
  void CopyTo(std::span<std::byte> out) override;

  // Computes the checksums, of many parts on many threads; the bytes go to `out`, the place of all records, on the way,
  // unless it is empty.
  void ReadParts(std::span<std::byte> out);

  TokenSpan span_;
  ReadThreads& threads_;
  std::vector<RecordHeader> headers_;
  std::vector<std::span<const std::byte>> payloads_;
  std::vector<std::vector<std::byte>> encoded_;  // headers, for Pieces
};

}  // namespace everlong::store
