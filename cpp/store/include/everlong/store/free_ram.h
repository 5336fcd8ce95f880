// How much RAM this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace everlong::store {

// Return the bytes that the system says are available, or half of all RAM where it does not say, but at most what the
// process' control groups leave. proc/ and sys/ are looked for in `root`. Call it from any thread.
int64_t FreeRamBytes(const std::filesystem::path& root = "/");

}  // namespace everlong::store
