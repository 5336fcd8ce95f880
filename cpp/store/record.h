// One record of a segment: one page of a block (docs/format.md, "Segments").
//
//   header, padded with zeros to a multiple of 4096 | part 0 | part 1 | ... | zeros to a multiple of 4096
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::store {

// What a record holds.
enum class PayloadKind : uint32_t {
  kKv = 1,  // a page: parts, encoded by the manifest's codec
  // All of a block's tensors of one kind in format 1, each kind a safetensors file:
  kDetail = 2,
  kIndex = 3,
  kText = 4,
  kTensors = 5,  // all of a block's tensors: a safetensors file
};
inline constexpr std::array kTensorKinds = {PayloadKind::kDetail, PayloadKind::kIndex, PayloadKind::kText,
                                            PayloadKind::kTensors};

inline constexpr int64_t kRecordAlignment = 4096;

struct RecordHeader {
  PayloadKind kind = PayloadKind::kKv;
  int64_t block = 0;
  int32_t page = 0;
  int32_t tokens = 0;
  int64_t part_bytes = 0;
  std::vector<uint32_t> part_crcs;  // CRC-32C of each part
};

constexpr int64_t AlignRecord(int64_t bytes) {
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// Return the bytes of the padded header of a record of `parts`. Part 0 begins there.
int64_t RecordHeaderBytes(int64_t parts);
// Return the bytes of the whole padded record.
int64_t RecordBytes(int64_t parts, int64_t part_bytes);

std::vector<std::byte> EncodeRecordHeader(const RecordHeader& header);
// Decode the header at the beginning of `bytes`, which may hold anything. kCorrupt says what is wrong.
Result<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes);

// Return the CRC-32C of each of `parts` equal parts of `page`.
std::vector<uint32_t> PartChecksums(std::span<const std::byte> page, int64_t parts);

}  // namespace everlong::store
