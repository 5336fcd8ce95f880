// A table of one kernel's versions for the instruction sets that this CPU can run.
#pragma once

#include <cstdint>

namespace everlong {

// The best version comes first. The others are there for tests, which compare them.
template <class Kernel>
struct KernelTable {
  Kernel kernels[4];
  int32_t count = 0;
};

}  // namespace everlong
