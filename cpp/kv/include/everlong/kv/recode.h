// Code a page anew: from one codec into another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "everlong/base/status.h"
#include "everlong/kv/payload.h"

namespace everlong::kv {

// Decode a page of `tokens` in layout `from`, and encode it in layout `to`, which differs in its codec alone. The
// numbers between them are fp32. page: from.PageBytes(tokens); out: to.PageBytes(tokens). kCorrupt where a scale or a
// centre is not one that an archive writes; kInvalidArgument where `to` cannot hold a number. Thread-safe.
Status RecodePage(std::span<const std::byte> page, int32_t tokens, const PayloadLayout& from, const PayloadLayout& to,
                  std::span<std::byte> out);

}  // namespace everlong::kv
