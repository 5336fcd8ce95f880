// The CRC-32C over the values of a catalog row (docs/format.md, "Row checksums"). Integers count as int64, and reals as
// the bits of their double. Texts and blobs count as their length in bytes (int64) and the bytes. All is little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "everlong/base/crc32c.h"

namespace everlong::store {

class RowChecksum {
 public:
  RowChecksum& Add(int64_t value) {
    crc_ = Crc32c(std::as_bytes(std::span(&value, 1)), crc_);
    return *this;
  }
  RowChecksum& Add(double value) { return Add(std::bit_cast<int64_t>(value)); }
  RowChecksum& Add(std::string_view text) { return Add(std::as_bytes(std::span(text.data(), text.size()))); }
  RowChecksum& Add(std::span<const std::byte> blob) {
    Add(static_cast<int64_t>(blob.size()));
    crc_ = Crc32c(blob, crc_);
    return *this;
  }
  [[nodiscard]] uint32_t value() const { return crc_; }

 private:
  uint32_t crc_ = 0;
};

}  // namespace everlong::store
