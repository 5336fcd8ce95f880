// CRC-32C, the checksum of every stored record: Castagnoli, polynomial 0x1EDC6F41, reflected (RFC 3720, B.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace everlong {

// Return the checksum of `bytes`. `crc` continues one: Crc32c(b, Crc32c(a)) == Crc32c(a then b). Thread-safe.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace everlong
