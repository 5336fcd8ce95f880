#include "sqlite_vfs.h"

#include <sqlite3.h>

#include <cstring>
#include <string_view>

namespace everlong {
namespace {

constexpr const char* kName = "everlong-beneath";
constexpr std::string_view kJournal = "-journal";

sqlite3_vfs* Below(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  file->pMethods = nullptr;
  if ((flags & SQLITE_OPEN_SUPER_JOURNAL) != 0) return SQLITE_CANTOPEN;
  // SQLite reads what stands at a journal's end, too, when it rolls back: nothing of another's may stand there.
  if (name != nullptr && (flags & SQLITE_OPEN_MAIN_JOURNAL) != 0) Below(vfs)->xDelete(Below(vfs), name, 0);
  return Below(vfs)->xOpen(Below(vfs), name, file, name == nullptr ? flags : flags | SQLITE_OPEN_NOFOLLOW, out_flags);
}

int Delete(sqlite3_vfs* vfs, const char* name, int sync_folder) {
  return Below(vfs)->xDelete(Below(vfs), name, sync_folder);
}

int Access(sqlite3_vfs* vfs, const char* name, int flags, int* out) {
  if (std::string_view(name).ends_with(kJournal)) {
    *out = 0;
    return SQLITE_OK;
  }
  return Below(vfs)->xAccess(Below(vfs), name, flags, out);
}

int FullPathname(sqlite3_vfs* /*vfs*/, const char* name, int bytes, char* out) {
  const size_t length = std::strlen(name);
  if (length >= static_cast<size_t>(bytes)) return SQLITE_CANTOPEN;
  std::memcpy(out, name, length + 1);
  return SQLITE_OK;
}

const char* Register() {
  sqlite3_vfs* const system = sqlite3_vfs_find(nullptr);
  if (system == nullptr) return nullptr;
  // Never removed: a connection may be open as long as the process lives. What is not set here is the system's own,
  // which asks nothing of the object that it is called with.
  static sqlite3_vfs vfs = *system;
  vfs.zName = kName;
  vfs.pNext = nullptr;
  vfs.pAppData = system;
  vfs.xOpen = Open;
  vfs.xDelete = Delete;
  vfs.xAccess = Access;
  vfs.xFullPathname = FullPathname;
  return sqlite3_vfs_register(&vfs, 0) == SQLITE_OK ? kName : nullptr;
}

}  // namespace

const char* BeneathVfs() {
  static const char* const name = Register();
  return name;
}

}  // namespace everlong
