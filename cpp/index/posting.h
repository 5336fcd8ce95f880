// What a page holds of an id.
#pragma once

#include <cstdint>

namespace everlong::index {

// A page that holds an id.
struct Posting {
  int32_t page = 0;   // ordinal
  int32_t count = 0;  // how often the id is in it
  bool operator==(const Posting&) const = default;
};

}  // namespace everlong::index
