// The catalog's rows of tensors: what a record of them holds, and where in its part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/store/tensor.h"
#include "record.h"

namespace everlong::store {

struct TensorRow {
  TensorInfo info;
  PayloadKind record = PayloadKind::kTensors;  // which of the block's records
  int64_t begin = 0;                           // of its bytes, in the record's one part
  uint32_t data_crc = 0;                       // CRC-32C of its bytes
  int64_t of = 0;                              // how many tensors the record has
  bool operator==(const TensorRow&) const = default;
};

// Return the prefix for names of tensors in a record of format 1; empty for a record of this format.
std::string_view NamePrefix(PayloadKind record);

// Return all tensors in the payload of a record, by name. kCorrupt when it is not a record of tensors.
Result<std::vector<TensorRow>> TensorRowsOf(PayloadKind record, std::span<const std::byte> payload);

}  // namespace everlong::store
