// One head of one part (one layer of one page, kv/payload.h) between fp32 rows and bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "everlong/kv/payload.h"

namespace everlong::kv {

// Which rows of a part: head `head`, tokens [first, first + count) of the `tokens` that the page holds.
struct PartRows {
  int32_t tokens = 0;
  int32_t head = 0;
  int32_t first = 0;
  int32_t count = 0;
};

// keys, values [tokens, D] fp32, finite: all tokens of the page, because their scales are shared.
void EncodeHeadKeys(const float* keys, const PayloadLayout& layout, int32_t tokens, int32_t head, std::byte* part);
void EncodeHeadValues(const float* values, const PayloadLayout& layout, int32_t tokens, int32_t head, std::byte* part);

// keys, values [count, D] fp32.
void DecodeHeadKeys(const std::byte* part, const PayloadLayout& layout, PartRows rows, float* keys);
void DecodeHeadValues(const std::byte* part, const PayloadLayout& layout, PartRows rows, float* values);

}  // namespace everlong::kv
