// Codes of coefficients as bytes, and back: rANS with four interleaved states and fixed frequencies.
//
// A stream is uint32 escapes; uint32 states[4]; int32 escaped codes[escapes]; then uint16 words. Symbol i is of state
// i % 4. A state lies in [2^16, 2^32), and takes a word where it falls below. It begins at 2^16, where the decoder
// ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "everlong/kv/transform.h"

namespace everlong::kv {

// What a slot of a table stands for: 5 bits of symbol, 13 of its frequency, 12 of the slot's place within it.
class RansTable {
 public:
  explicit RansTable(const TransformTable& table);

  int32_t shift = 0;
  std::array<uint32_t, kTransformSymbols> starts{};
  std::array<uint32_t, kTransformSymbols> frequencies{};
  std::array<uint32_t, size_t{1} << kTransformFrequencyBits> slots{};
};

// codes [rows, tables.size()]: code i of a row is of table tables[i].
void RansEncode(std::span<const int32_t> codes, std::span<const uint8_t> tables, std::span<const RansTable> all,
                std::vector<std::byte>& out);

// Fill `codes`. Return false for bytes that RansEncode does not write. Any bytes may be given.
bool RansDecode(std::span<const std::byte> bytes, std::span<const uint8_t> tables, std::span<const RansTable> all,
                std::span<int32_t> codes);

}  // namespace everlong::kv
