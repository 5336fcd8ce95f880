#include "sqlite_vfs.h"

#include <sqlite3.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>

namespace everlong {
namespace {

constexpr const char* kName = "everlong-beneath";
constexpr std::string_view kJournal = "-journal";

sqlite3_vfs* Below(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

// The system's reading of a file; one for all of its methods.
std::atomic<decltype(sqlite3_io_methods::xRead)> g_read = nullptr;

int Read(sqlite3_file* file, void* out, int bytes, sqlite3_int64 offset) {
  const int code = g_read.load()(file, out, bytes, offset);
  // SQLite would call a file damaged that the system refuses to read.
  return code == SQLITE_IOERR_CORRUPTFS ? SQLITE_IOERR_READ : code;
}

// Return the system's methods of a file, with Read. SQLite has a few, one for each kind of lock. It allocates nothing:
// SQLite calls it.
const sqlite3_io_methods* WithRead(const sqlite3_io_methods* methods) {
  struct Known {
    const sqlite3_io_methods* of = nullptr;
    sqlite3_io_methods ours = {};
  };
  static std::mutex mutex;
  static std::array<Known, 8> known;
  const std::scoped_lock lock(mutex);
  for (Known& one : known) {
    if (one.of == nullptr) {
      one = {methods, *methods};
      one.ours.xRead = Read;
      g_read = methods->xRead;
    }
    if (one.of == methods) return &one.ours;
  }
  return methods;
}

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  file->pMethods = nullptr;
  if ((flags & SQLITE_OPEN_SUPER_JOURNAL) != 0) return SQLITE_CANTOPEN;
  // SQLite reads what stands at a journal's end, too, when it rolls back: nothing of another's may stand there.
  if (name != nullptr && (flags & SQLITE_OPEN_MAIN_JOURNAL) != 0) Below(vfs)->xDelete(Below(vfs), name, 0);
  const int safe = name == nullptr ? flags : flags | SQLITE_OPEN_NOFOLLOW;
  const int code = Below(vfs)->xOpen(Below(vfs), name, file, safe, out_flags);
  if (file->pMethods != nullptr) file->pMethods = WithRead(file->pMethods);
  return code;
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
