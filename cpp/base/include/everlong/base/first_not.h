// A binary search over numbers. std::ranges::partition_point over std::views::iota is the same, and does not compile
// with Clang 14 and libstdc++.
#pragma once

#include <cstdint>

namespace everlong {

// Return the first of 0 .. count - 1 that is not `before`, as all behind it; count if there is none.
template <class Before>
int32_t FirstNot(int32_t count, const Before& before) {
  int32_t first = 0;
  for (int32_t last = count; first < last;) {
    const int32_t middle = first + (last - first) / 2;
    if (before(middle)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

}  // namespace everlong
