// One kernel for every instruction set that this CPU can run.
#pragma once

#include <cstdint>

namespace everlong {

// The best first: tests compare them.
template <class Kernel>
struct KernelTable {
  Kernel kernels[4];
  int32_t count = 0;
};

}  // namespace everlong
