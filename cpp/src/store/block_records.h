// The records of a block on their way into a segment: headers made here, parts where the caller has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "catalog.h"
#include "everlong/base/status.h"
#include "everlong/store/memory_store.h"
#include "record.h"
#include "segment_set.h"

namespace everlong::store {

// kInvalidArgument naming what does not fit.
Status ValidateDraft(const BlockDraft& draft, const Geometry& geometry);

class BlockRecords {
 public:
  // `span` is the block's; what is added stays in its place until it was written.
  explicit BlockRecords(TokenSpan span) : span_(span) {}
  // The pages of its kv, checked before. Computes their checksums.
  void AddPages(std::span<const std::byte> payload, std::span<const int64_t> page_bytes, const Geometry& geometry);
  // All of its tensors: a safetensors file.
  void AddTensors(std::span<const std::byte> file);

  // Appends the records in the order in which they were added, in one piece; durable after segments.Sync(). Returns
  // where each lies.
  Result<std::vector<PageRow>> Write(int64_t block, SegmentSet& segments);

 private:
  TokenSpan span_;
  std::vector<RecordHeader> headers_;
  std::vector<std::span<const std::byte>> payloads_;
};

}  // namespace everlong::store
