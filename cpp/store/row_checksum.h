// The CRC-32C over the values of a catalog row (docs/format.md, "Row checksums"). Integers count as int64, and reals as
// the bits of their double. Texts and blobs count as their length in bytes (int64) and the bytes. All is little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "everlong/base/crc32c.h"
#include "everlong/base/sqlite.h"

namespace everlong::store {

class RowChecksum {
 public:
  template <class... Values>
  RowChecksum& Add(const Values&... values) {
    (AddOne(ColumnValue(values)), ...);
    return *this;
  }
  [[nodiscard]] uint32_t value() const { return crc_; }

 private:
  void AddOne(int64_t value) { crc_ = Crc32c(std::as_bytes(std::span(&value, 1)), crc_); }
  void AddOne(double value) { AddOne(std::bit_cast<int64_t>(value)); }
  void AddOne(std::string_view text) { AddOne(std::as_bytes(std::span(text.data(), text.size()))); }
  void AddOne(std::span<const std::byte> blob) {
    AddOne(std::ssize(blob));
    crc_ = Crc32c(blob, crc_);
  }

  uint32_t crc_ = 0;
};

}  // namespace everlong::store
