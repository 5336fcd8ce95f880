#include "everlong/kv/payload.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "everlong/base/check.h"

namespace everlong::kv {
namespace {

#define EVERLONG_NAME(constant, name, ...) std::string_view(name),
constexpr std::array kNames = {EVERLONG_CODECS(EVERLONG_NAME)};  // by Codec
#undef EVERLONG_NAME

Status RequirePositive(std::string_view name, int32_t value) {
  if (value > 0) return OkStatus();
  return InvalidArgumentError("payload layout: " + std::string(name) + " is " + std::to_string(value) +
                              "; expected at least 1");
}

}  // namespace

std::string_view CodecName(Codec codec) { return kNames[static_cast<size_t>(codec)]; }

std::vector<Codec> AllCodecs() {
  std::vector<Codec> codecs;
  for (size_t number = 0; number < kNames.size(); ++number) codecs.push_back(static_cast<Codec>(number));
  return codecs;
}

Result<Codec> ParseCodec(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name);
  if (found != kNames.end()) return static_cast<Codec>(found - kNames.begin());
  std::string expected;
  for (const std::string_view known : kNames)
    expected += (expected.empty() ? "\"" : ", \"") + std::string(known) + "\"";
  return InvalidArgumentError("codec is \"" + std::string(name) + "\"; expected one of " + expected);
}

int64_t PayloadLayout::PageCount(int64_t tokens) const { return (tokens + page_tokens - 1) / page_tokens; }

int32_t PayloadLayout::PageTokens(int64_t tokens, int64_t page) const {
  EVERLONG_CHECK(page >= 0 && page < PageCount(tokens));
  return static_cast<int32_t>(std::min<int64_t>(page_tokens, tokens - page * page_tokens));
}

int64_t PayloadLayout::PartBytes(int32_t tokens) const { return PartLayout{codec, kv_heads, head_dim, tokens}.Bytes(); }

int64_t PayloadLayout::PageBytes(int32_t tokens) const { return layers * PartBytes(tokens); }

int64_t PayloadLayout::BlockBytes(int64_t tokens) const {
  const int64_t full_pages = tokens / page_tokens;
  const auto rest = static_cast<int32_t>(tokens % page_tokens);
  return full_pages * PageBytes(page_tokens) + (rest > 0 ? PageBytes(rest) : 0);
}

Status Validate(const PayloadLayout& layout) {
  EVERLONG_RETURN_IF_ERROR(RequirePositive("layers", layout.layers));
  EVERLONG_RETURN_IF_ERROR(RequirePositive("kv_heads", layout.kv_heads));
  EVERLONG_RETURN_IF_ERROR(RequirePositive("head_dim", layout.head_dim));
  EVERLONG_RETURN_IF_ERROR(RequirePositive("page_tokens", layout.page_tokens));
  // The size of a block's mean key, which is counted in 32 bits.
  if (int64_t{layout.kv_heads} * layout.head_dim > std::numeric_limits<int32_t>::max()) {
    return InvalidArgumentError("payload layout: kv_heads * head_dim is " +
                                std::to_string(int64_t{layout.kv_heads} * layout.head_dim) +
                                "; expected less than 2^31");
  }
  // An upper bound of PageBytes, in factors that do not overflow by themselves.
  int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(static_cast<int64_t>(layout.layers) * layout.kv_heads,
                                                2 * (static_cast<int64_t>(layout.page_tokens) + 1), &bytes) ||
                         __builtin_mul_overflow(bytes, 4 * (static_cast<int64_t>(layout.head_dim) + 1), &bytes);
  if (!overflows) return OkStatus();
  return InvalidArgumentError("payload layout: [layers, kv_heads, page_tokens, head_dim] is [" +
                              std::to_string(layout.layers) + ", " + std::to_string(layout.kv_heads) + ", " +
                              std::to_string(layout.page_tokens) + ", " + std::to_string(layout.head_dim) +
                              "]; expected a page of less than 2^63 bytes");
}

}  // namespace everlong::kv
