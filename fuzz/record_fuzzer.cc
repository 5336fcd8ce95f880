// Any bytes as a record of a segment: its header, and tensors as its payload.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "everlong/base/check.h"
#include "everlong/base/crc32c.h"
#include "everlong/store/tensor.h"
#include "record.h"
#include "tensor_rows.h"

namespace {

using everlong::Result;
using everlong::store::RecordHeader;

void CheckHeader(std::span<const std::byte> bytes) {
  const Result<RecordHeader> header = everlong::store::DecodeRecordHeader(bytes);
  if (!header.ok()) return;
  const std::vector<std::byte> encoded = everlong::store::EncodeRecordHeader(*header);
  EVERLONG_CHECK(encoded.size() <= bytes.size());
  const Result<RecordHeader> again = everlong::store::DecodeRecordHeader(encoded);
  EVERLONG_CHECK(again.ok() && again->part_crcs == header->part_crcs && again->block == header->block &&
                 again->page == header->page && again->part_bytes == header->part_bytes);
}

void CheckTensors(std::span<const std::byte> bytes) {
  const auto tensors = everlong::store::DecodeTensors(bytes);
  const auto rows = everlong::store::TensorRowsOf(everlong::store::PayloadKind::kTensors, bytes);
  EVERLONG_CHECK(rows.ok() == tensors.ok());
  if (!tensors.ok()) return;
  EVERLONG_CHECK(rows->size() == tensors->size());
  for (size_t i = 0; i < rows->size(); ++i) {
    const everlong::store::TensorRow& row = (*rows)[i];
    const auto own = bytes.subspan(static_cast<size_t>(row.begin), static_cast<size_t>(row.info.bytes));
    EVERLONG_CHECK(std::ranges::equal(own, (*tensors)[i].bytes) && everlong::Crc32c(own) == row.data_crc);
  }
  std::vector<everlong::store::TensorView> views;
  for (const auto& tensor : *tensors) views.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  const auto encoded = everlong::store::EncodeTensors(views);
  EVERLONG_CHECK(encoded.ok());
  const auto again = everlong::store::DecodeTensors(*encoded);
  EVERLONG_CHECK(again.ok() && again->size() == tensors->size());
  for (size_t i = 0; i < tensors->size(); ++i) EVERLONG_CHECK((*again)[i].bytes == (*tensors)[i].bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  CheckHeader(bytes);
  CheckTensors(bytes);
  // The same header with the checksum that it should have, which no fuzzer guesses.
  constexpr size_t kAtHeaderBytes = 36;
  constexpr size_t kAtHeaderCrc = 48;
  uint32_t header_bytes = 0;
  if (size >= kAtHeaderBytes + 4) std::memcpy(&header_bytes, data + kAtHeaderBytes, 4);
  if (header_bytes >= kAtHeaderCrc + 4 && header_bytes <= size) {
    std::vector<std::byte> checked(bytes.begin(), bytes.end());
    std::memset(checked.data() + kAtHeaderCrc, 0, 4);
    const uint32_t crc = everlong::Crc32c(std::span(checked).first(header_bytes));
    std::memcpy(checked.data() + kAtHeaderCrc, &crc, 4);
    CheckHeader(checked);
  }
  return 0;
}
