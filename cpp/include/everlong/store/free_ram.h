// How much RAM this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace everlong::store {

// What the system says is available, or half of all there is where it does not say, but no more than the process'
// control groups leave it, in bytes. proc/ and sys/ are looked for in `root`. Any thread.
int64_t FreeRamBytes(const std::filesystem::path& root = "/");

}  // namespace everlong::store
