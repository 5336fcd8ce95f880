// How much RAM this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace everlong::store {

// What the system calls available memory, but no more than the process' control groups leave it, in bytes; 0 when the
// system does not say. proc/ and sys/ are looked for in `root`. Any thread.
int64_t FreeMemoryBytes(const std::filesystem::path& root = "/");

}  // namespace everlong::store
