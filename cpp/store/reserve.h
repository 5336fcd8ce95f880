// Room that a memory keeps on its disk. What frees room needs some itself: pages in the catalog's log.
#pragma once

#include "everlong/base/file.h"

namespace everlong::store {

inline constexpr const char* kReserveFile = "reserve";
inline constexpr int64_t kReserveBytes = 256 * 1024;

// Whether something that is no reserve, nor what a crash left of one, has its name.
bool IsReserveForeign(const FilePath& folder);
// Take the room in a folder, where it is not taken yet. A disk that has none left is no failure. Nothing is in the
// file.
void KeepReserve(const FilePath& folder);
// Give it back.
void ReleaseReserve(const FilePath& folder);

}  // namespace everlong::store
