// How much RAM this process may still take.
#pragma once

#include <cstdint>

namespace everlong::store {

// What the system calls available memory, in bytes; 0 when it does not say.
int64_t FreeMemoryBytes();

}  // namespace everlong::store
