#include "everlong/kv/recode.h"

#include <vector>

#include "everlong/base/check.h"
#include "everlong/kv/archive.h"

namespace everlong::kv {

Status RecodePage(std::span<const std::byte> page, int32_t tokens, const PayloadLayout& from, const PayloadLayout& to,
                  std::span<std::byte> out) {
  EVERLONG_CHECK(std::ssize(page) == from.PageBytes(tokens) && std::ssize(out) == to.PageBytes(tokens));
  const int64_t head_stride = int64_t{tokens} * from.head_dim;
  const int64_t numbers = from.layers * from.kv_heads * head_stride;
  std::vector<float> k(static_cast<size_t>(numbers));
  std::vector<float> v(static_cast<size_t>(numbers));
  const FrameKv frame{k.data(),      v.data(),      DType::kFloat32, from.layers,
                      from.kv_heads, from.head_dim, tokens,          from.kv_heads * head_stride,
                      head_stride};
  const PagePlacement whole{0, tokens, 0, tokens, 0, 0};
  EVERLONG_RETURN_IF_ERROR(RestorePages(page, {&whole, 1}, from, RopeTable{}, frame, {}));
  return ArchiveSpan(frame, {}, Pairing::kHalfSplit, 0, tokens, to, out);
}

}  // namespace everlong::kv
