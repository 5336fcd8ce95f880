// What a GPU archive reports of a number that its codec cannot hold: plain values that the host reads later.
#pragma once

#include <cstdint>

#include "everlong/base/element.h"

namespace everlong::kv {

// The first such number. `index` counts all numbers of full pages in the order of the payload: layer by layer, head by
// head, a head's keys before its values.
struct RefusedNumber {
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t index = kNone;
  float value = 0;  // un-rotated: NaN, an infinity, or too large
};

struct PayloadSizes {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
};

struct NumberPlace {
  bool is_key = true;
  int64_t layer = 0;
  int64_t head = 0;
  int64_t token = 0;  // number within the span
  int32_t d = 0;
};

EVERLONG_HD inline uint64_t IndexOfNumber(const PayloadSizes& sizes, const NumberPlace& at) {
  const int64_t page = at.token / sizes.page_tokens;
  const int64_t side = 2 * ((page * sizes.layers + at.layer) * sizes.kv_heads + at.head) + (at.is_key ? 0 : 1);
  return static_cast<uint64_t>((side * sizes.page_tokens + at.token % sizes.page_tokens) * sizes.head_dim + at.d);
}

EVERLONG_HD inline NumberPlace PlaceOfNumber(const PayloadSizes& sizes, uint64_t index) {
  const auto number = static_cast<int64_t>(index);
  const int64_t row = number / sizes.head_dim;
  const int64_t side = row / sizes.page_tokens;
  const int64_t head = side / 2;  // of all pages and layers
  const int64_t page = head / sizes.kv_heads / sizes.layers;
  return {side % 2 == 0, head / sizes.kv_heads % sizes.layers, head % sizes.kv_heads,
          page * sizes.page_tokens + row % sizes.page_tokens, static_cast<int32_t>(number % sizes.head_dim)};
}

}  // namespace everlong::kv
