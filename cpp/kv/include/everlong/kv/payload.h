// The layout of a payload: how the KV of a block lies in bytes.
//
//   payload = page 0 | page 1 | ... | last page (may hold fewer tokens)
//   page    = part 0 | part 1 | ...                     one part a layer, so that a layer can be read alone
//   part    = K codes [Hkv, T, D] | V codes [Hkv, T, D] | K scales [Hkv, D] | V scales [Hkv, T] or [Hkv, T, groups]
//             | K centres [Hkv, D]
//
// Keys are un-rotated. Codecs without scales (fp32, bf16) have no scale arrays, and only centred ones have centres. The
// codes of one token of a head are whole bytes. kv/codec.h has the places, base/element.h the numbers. Little-endian.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/kv/codec.h"

namespace everlong::kv {

std::vector<Codec> AllCodecs();
std::string_view CodecName(Codec codec);
Result<Codec> ParseCodec(std::string_view name);

struct PayloadLayout {
  Codec codec = Codec::kE4M3;
  int32_t layers = 0;       // archived (full-attention) layers
  int32_t kv_heads = 0;     // Hkv
  int32_t head_dim = 0;     // D
  int32_t page_tokens = 0;  // tokens of a full page: 64 or 128

  [[nodiscard]] int64_t PageCount(int64_t tokens) const;                 // pages of a block of `tokens`
  [[nodiscard]] int32_t PageTokens(int64_t tokens, int64_t page) const;  // tokens in page `page` of such a block
  [[nodiscard]] int64_t PartBytes(int32_t tokens) const;                 // one layer of a page of `tokens`
  [[nodiscard]] int64_t PageBytes(int32_t tokens) const;                 // all layers of a page of `tokens`
  [[nodiscard]] int64_t BlockBytes(int64_t tokens) const;                // all pages of a block of `tokens`
};

Status Validate(const PayloadLayout& layout);

}  // namespace everlong::kv
