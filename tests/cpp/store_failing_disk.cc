#include "store_failing_disk.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <utility>

#include "base_opened_beneath.h"
#include "store_open_hook.h"

using everlong::store::Disk;
using everlong::store::Fault;
using everlong::store::g_disk;
using everlong::store::LosePower;
using everlong::store::Undo;

void everlong::store::LosePower() {
  const std::vector<Undo> undo = std::exchange(g_disk->undo, {});
  g_disk = nullptr;
  for (auto change = undo.rbegin(); change != undo.rend(); ++change) {
    const int fd = ::open(change->path.c_str(), O_RDWR);
    if (fd < 0) continue;
    if (::pwrite(fd, change->bytes.data(), change->bytes.size(), change->offset) < 0) ::_exit(8);
    if (::ftruncate(fd, change->size) != 0) ::_exit(8);
    ::close(fd);
  }
  ::_exit(9);
}

namespace {

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string PathOf(int fd) { return everlong::PathOfDescriptor(fd); }

bool IsOurs(const std::string& path) { return g_disk != nullptr && path.starts_with(g_disk->folder); }
bool Counts(const std::string& path) { return IsOurs(path) && g_disk->refusal == 0; }

// Whether a call that reads, or opens for it, is the one that is refused.
bool IsRefused(const std::string& path) {
  if (!IsOurs(path) || g_disk->refusal == 0 || g_disk->calls++ != g_disk->at) return false;
  errno = g_disk->refusal;
  return true;
}

// What open, in store_threads_test.cc, asks.
const bool g_hooked = [] {
  everlong::store::g_refuses_open = [](const everlong::OpenedBeneath& opened) {
    return g_disk != nullptr && IsRefused(opened.path());
  };
  return true;
}();

ssize_t ReadAs(const char* name, int fd, void* data, size_t count, off_t offset) {
  if (g_disk != nullptr && IsRefused(PathOf(fd))) return -1;
  return Real<ssize_t(int, void*, size_t, off_t)>(name)(fd, data, count, offset);
}

void Remember(int fd, const std::string& path, off_t offset, size_t count) {
  struct stat status = {};
  ::fstat(fd, &status);
  Undo undo{path, offset, std::string(count, '\0'), status.st_size};
  const ssize_t got = ::pread(fd, undo.bytes.data(), count, offset);
  undo.bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  g_disk->undo.push_back(std::move(undo));
}

// Whether this call is the one that fails; does not come back from one that is the last.
bool Strikes() {
  if (g_disk->holds && std::this_thread::get_id() != g_disk->main) {
    g_disk->holds = false;
    g_disk->held.release();
    g_disk->go.acquire();
  }
  if (g_disk->calls++ != g_disk->at) return false;
  if (g_disk->fault == Fault::kPowerLoss) LosePower();
  if (g_disk->fault == Fault::kDie) ::_exit(9);
  return true;
}

// The bytes of a write that reach the disk: all, or, of the one that is torn, half; -1 when none do.
ssize_t Allowed(int fd, off_t offset, size_t count) {
  if (g_disk == nullptr) return static_cast<ssize_t>(count);
  const std::string path = PathOf(fd);
  if (!Counts(path)) return static_cast<ssize_t>(count);
  const bool strikes = Strikes();
  Remember(fd, path, offset, count);
  if (!strikes) return static_cast<ssize_t>(count);
  if (g_disk->fault == Fault::kFail || g_disk->fault == Fault::kFailThenPowerLoss) return -1;
  return static_cast<ssize_t>(count / 2);
}

ssize_t AfterTear() {
  if (g_disk->fault == Fault::kTearAndDie) ::_exit(9);
  errno = ENOSPC;
  return -1;
}

int Synced(int fd, const char* name) {
  if (g_disk == nullptr) return Real<int(int)>(name)(fd);
  const std::string path = PathOf(fd);
  if (Counts(path)) {
    if (Strikes()) {
      errno = EIO;
      return -1;
    }
    g_disk->synced.insert(path);
    std::erase_if(g_disk->undo, [&path](const Undo& undo) { return undo.path == path; });
  }
  return Real<int(int)>(name)(fd);
}

// Whether a rename is the call that fails.
bool RenameFails(const std::string& from, const std::string& to) {
  if (g_disk == nullptr || !Counts(from)) return false;
  if (Strikes()) {
    errno = EIO;
    return true;
  }
  for (Undo& undo : g_disk->undo) {
    if (undo.path == from) undo.path = to;
  }
  return false;
}

int Truncated(int fd, off_t size) {
  if (g_disk == nullptr) return Real<int(int, off_t)>("ftruncate")(fd, size);
  const std::string path = PathOf(fd);
  if (Counts(path)) {
    if (Strikes()) {
      errno = EIO;
      return -1;
    }
    struct stat status = {};
    ::fstat(fd, &status);
    Remember(fd, path, size, static_cast<size_t>(std::max<off_t>(0, status.st_size - size)));
  }
  return Real<int(int, off_t)>("ftruncate")(fd, size);
}

ssize_t Written(int fd, const iovec* pieces, int count, off_t offset) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  const ssize_t allowed = Allowed(fd, offset, bytes);
  if (allowed < 0) {
    errno = EIO;
    return -1;
  }
  if (static_cast<size_t>(allowed) == bytes) {
    return Real<ssize_t(int, const iovec*, int, off_t)>("pwritev")(fd, pieces, count, offset);
  }
  auto left = static_cast<size_t>(allowed);
  for (int i = 0; i < count && left > 0; ++i) {
    const size_t part = std::min(left, pieces[i].iov_len);
    if (Real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, pieces[i].iov_base, part, offset) < 0) ::_exit(8);
    offset += static_cast<off_t>(part);
    left -= part;
  }
  return AfterTear();
}

}  // namespace

extern "C" {
ssize_t pread(int fd, void* data, size_t count, off_t offset) { return ReadAs("pread", fd, data, count, offset); }
ssize_t pread64(int fd, void* data, size_t count, off64_t offset) { return ReadAs("pread64", fd, data, count, offset); }
int open64(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  if (g_disk != nullptr && IsRefused(everlong::ResolvedPath(path))) return -1;
  return Real<int(const char*, int, ...)>("open64")(path, flags, mode);
}
ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  const iovec piece = {const_cast<void*>(data), count};
  return Written(fd, &piece, 1, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t count, off64_t offset) { return pwrite(fd, data, count, offset); }
ssize_t pwritev(int fd, const iovec* pieces, int count, off_t offset) { return Written(fd, pieces, count, offset); }
ssize_t write(int fd, const void* data, size_t count) {
  const off_t offset = g_disk == nullptr ? 0 : ::lseek(fd, 0, SEEK_CUR);
  const ssize_t allowed = Allowed(fd, offset, count);
  if (allowed < 0) {
    errno = EIO;
    return -1;
  }
  const ssize_t done = Real<ssize_t(int, const void*, size_t)>("write")(fd, data, static_cast<size_t>(allowed));
  return static_cast<size_t>(allowed) < count ? AfterTear() : done;
}
int fsync(int fd) { return Synced(fd, "fsync"); }
int fdatasync(int fd) { return Synced(fd, "fdatasync"); }
int ftruncate(int fd, off_t size) noexcept { return Truncated(fd, size); }
int ftruncate64(int fd, off64_t size) noexcept { return Truncated(fd, size); }
int rename(const char* from, const char* to) noexcept {
  return g_disk != nullptr && RenameFails(from, to) ? -1 : Real<int(const char*, const char*)>("rename")(from, to);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  // Paths take memory, of which a test may leave none.
  const bool fails =
      g_disk != nullptr && RenameFails(everlong::PathBeneath(from_folder, from), everlong::PathBeneath(to_folder, to));
  return fails ? -1 : Real<int(int, const char*, int, const char*)>("renameat")(from_folder, from, to_folder, to);
}
}
