// What somebody may have done to a memory folder before it is opened here.
#pragma once

#include <filesystem>

#include "folder_memories.h"
#include "folder_rows.h"

namespace everlong::fuzz {

// Make one change in `folder`, which began as `memory`. Links lead into `outside`, which has a copy of the memory, too.
// Nothing outside of the folder is changed.
void ChangeFolder(Choices& choices, const std::filesystem::path& folder, const GoodMemory& memory,
                  const std::filesystem::path& outside);

}  // namespace everlong::fuzz
