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
  PayloadKind record = PayloadKind::kTensors;  // which of the block's
  int64_t begin = 0;                           // of its bytes, in the record's one part
  uint32_t data_crc = 0;                       // CRC-32C of those
  int64_t of = 0;                              // how many tensors the record has
  bool operator==(const TensorRow&) const = default;
};

// What the tensors of a record of format 1 are called before their own names; empty for a record of this format.
std::string_view NamePrefix(PayloadKind record);

// Of all tensors in the payload of a record, by name. kCorrupt when it is none of tensors.
Result<std::vector<TensorRow>> TensorRowsOf(PayloadKind record, std::span<const std::byte> payload);

}  // namespace everlong::store
