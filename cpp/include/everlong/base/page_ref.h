// A page by name: of which block, and which tokens of which stream it holds.
#pragma once

#include <cstdint>

#include "everlong/base/token_span.h"

namespace everlong {

struct PageRef {
  int64_t block = 0;        // its id
  int32_t page = 0;         // of the block's pages, from 0
  int64_t stream = 0;       // whose tokens these are
  TokenSpan span;           // of that stream
  int32_t sink_tokens = 0;  // so many of its first tokens are sinks of that stream
  bool operator==(const PageRef&) const = default;
};

}  // namespace everlong
