// The name of a page: its block, and the tokens of the stream that it holds.
#pragma once

#include <cstdint>

#include "everlong/base/token_span.h"

namespace everlong {

struct PageRef {
  int64_t block = 0;        // the block's id
  int32_t page = 0;         // number of the page in the block, from 0
  int64_t stream = 0;       // the stream that the tokens belong to
  TokenSpan span;           // tokens of that stream
  int32_t sink_tokens = 0;  // how many of its first tokens are sinks of that stream
  bool operator==(const PageRef&) const = default;
};

}  // namespace everlong
