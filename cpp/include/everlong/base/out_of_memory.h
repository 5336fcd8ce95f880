// The C++ library says that there is no memory by an exception; everlong says it by a Status.
#pragma once

#include <new>
#include <utility>

#include "everlong/base/status.h"

namespace everlong {

// What `work` returns, a Status or a Result; kCapacity where there was no memory for it. Allocates nothing itself.
template <class Work>
auto OrOutOfMemory(Work&& work) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return CapacityError("out of memory");  // short enough for a string without memory of its own
  }
}

}  // namespace everlong
