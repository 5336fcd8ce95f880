// What a user does with a memory.
#pragma once

#include <filesystem>

#include "everlong/base/status.h"
#include "everlong/os/memory.h"

namespace everlong::fuzz {

// Both return the first failure, and go on behind it.
// Read all that a memory answers: blocks, payload, tensors, searches by every part of the index, the graph.
Status ReadAll(os::Memory& memory);
// Add a block, and to a block; grow the graph; save the indexes; forget a block; compact; fork and export into `made`.
Status WriteAll(os::Memory& memory, const std::filesystem::path& made);

}  // namespace everlong::fuzz
