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
  // The pages of a block's kv, checked before. Computes their checksums.
  BlockRecords(TokenSpan span, std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
               const Geometry& geometry);
  // The one record of another kind.
  BlockRecords(PayloadKind kind, TokenSpan span, std::span<const std::byte> payload);

  // Appends the records; durable after segments.Sync(). Returns where each lies.
  Result<std::vector<PageRow>> Write(int64_t block, SegmentSet& segments);

 private:
  int64_t parts_;
  std::vector<RecordHeader> headers_;
  std::vector<std::span<const std::byte>> payloads_;
};

}  // namespace everlong::store
