// Turn std::bad_alloc of the C++ library into a Status.
#pragma once

#include <new>
#include <utility>

#include "everlong/base/status.h"

namespace everlong {

// Return the Status or Result of `work`, or kCapacity when it runs out of memory. It allocates nothing itself.
template <class Work>
auto OrOutOfMemory(Work&& work) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return CapacityError("out of memory");  // short enough that the string allocates nothing
  }
}

}  // namespace everlong
