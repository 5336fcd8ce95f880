#include "everlong/base/file.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <vector>

namespace everlong {
namespace {

constexpr size_t kPiecesPerCall = 64;  // far below every system's IOV_MAX
constexpr int64_t kCopyBytes = int64_t{4} << 20;
constexpr mode_t kOwnerAlone = 0700;
constexpr mode_t kProcessDefault = 0777;  // less the umask

// Return the system's name for the folder of a path with one name.
std::filesystem::path Named(const std::filesystem::path& folder) { return folder.empty() ? "." : folder; }

// Create a folder and those above it that are missing, each durable in the folder that holds it.
Status MakeFolders(const std::filesystem::path& folder, mode_t mode) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return OkStatus();
  const std::filesystem::path parent = folder.parent_path();
  // "a/" and "a/." are "a", and have the same parent.
  if (!folder.has_filename() || folder.filename() == ".") return MakeFolders(parent, mode);
  EVERLONG_RETURN_IF_ERROR(MakeFolders(parent, kProcessDefault));
  if (::mkdir(folder.c_str(), mode) != 0) {
    const int error_number = errno;
    const bool made_meanwhile = error_number == EEXIST && std::filesystem::is_directory(folder, error);
    if (!made_meanwhile) return ErrnoError("cannot create folder", folder, error_number);
  }
  return SyncFolder(parent);
}

Status WriteAndRename(const std::filesystem::path& path, const std::filesystem::path& temporary,
                      std::span<const std::byte> bytes) {
  {
    EVERLONG_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(temporary, O_RDWR | O_CREAT | O_TRUNC));
    EVERLONG_RETURN_IF_ERROR(WriteAt(file, temporary, 0, std::span(&bytes, 1)));
    EVERLONG_RETURN_IF_ERROR(SyncFile(file, temporary));
  }
  return RenameFile(temporary, path);
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Status ErrnoError(std::string_view action, const std::filesystem::path& path, int error_number) {
  return IoError(std::string(action) + " '" + path.string() +
                 "': " + std::error_code(error_number, std::generic_category()).message());
}

Result<UniqueFd> OpenFile(const std::filesystem::path& path, int flags) {
  UniqueFd file(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (file.get() >= 0) return file;
  if (errno == ENOENT && (flags & O_CREAT) != 0) return NotFoundError("no folder for '" + path.string() + "'");
  if (errno == ENOENT) return NotFoundError("no file '" + path.string() + "'");
  return ErrnoError("cannot open", path, errno);
}

Result<int64_t> FileSize(const UniqueFd& file, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return ErrnoError("cannot get the size of", path, errno);
  return static_cast<int64_t>(status.st_size);
}

Result<int64_t> ReadAt(const UniqueFd& file, const std::filesystem::path& path, int64_t offset,
                       std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t count =
        ::pread(file.get(), out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError("cannot read", path, errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return static_cast<int64_t>(done);
}

Status WriteAt(const UniqueFd& file, const std::filesystem::path& path, int64_t offset,
               std::span<const std::span<const std::byte>> pieces) {
  size_t piece = 0;   // first piece that is not written whole
  size_t within = 0;  // bytes of it that are written
  while (piece < pieces.size()) {
    std::array<iovec, kPiecesPerCall> vector = {};
    size_t used = 0;
    for (size_t i = piece; i < pieces.size() && used < vector.size(); ++i) {
      const std::span<const std::byte> rest = pieces[i].subspan(i == piece ? within : 0);
      // iovec is shared with readv and so is not const. pwritev does not write through it.
      vector[used++] = {const_cast<std::byte*>(rest.data()), rest.size()};
    }
    const ssize_t count = ::pwritev(file.get(), vector.data(), static_cast<int>(used), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError("cannot write to", path, errno);
    offset += count;
    auto left = static_cast<size_t>(count);
    const size_t before = piece;
    while (piece < pieces.size() && left >= pieces[piece].size() - within) {
      left -= pieces[piece].size() - within;
      within = 0;
      ++piece;
    }
    within += left;
    if (count == 0 && piece == before) return ErrnoError("cannot write to", path, ENOSPC);
  }
  return OkStatus();
}

Status SyncFile(const UniqueFd& file, const std::filesystem::path& path) {
  if (::fsync(file.get()) != 0) return ErrnoError("cannot make durable", path, errno);
  return OkStatus();
}

Status SyncFolder(const std::filesystem::path& folder) {
  const std::filesystem::path name = Named(folder);
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd handle, OpenFile(name, O_RDONLY | O_DIRECTORY));
  return SyncFile(handle, name);
}

Result<std::filesystem::path> AbsolutePath(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return ErrnoError("cannot get the current folder for", path, error.value());
  return absolute;
}

Status MakeFolder(const std::filesystem::path& folder) { return MakeFolders(folder, kOwnerAlone); }

Status ReplaceFile(const std::filesystem::path& path, const std::filesystem::path& temporary,
                   std::span<const std::byte> bytes) {
  Status replaced = WriteAndRename(path, temporary, bytes);
  if (!replaced.ok()) static_cast<void>(RemoveFile(temporary));
  return replaced;
}

Status RenameFile(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) return ErrnoError("cannot replace", to, errno);
  return SyncFolder(to.parent_path());
}

Status RemoveFile(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("cannot remove", path, errno);
  return OkStatus();
}

Status RemoveFiles(const std::filesystem::path& folder,
                   const std::function<bool(const std::filesystem::path& name)>& goes) {
  std::error_code error;
  std::filesystem::directory_iterator entry(Named(folder), error);
  if (error == std::errc::no_such_file_or_directory) return OkStatus();
  std::vector<std::filesystem::path> going;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (goes(entry->path().filename())) going.push_back(entry->path());
  }
  if (error) return ErrnoError("cannot list", folder, error.value());
  for (const std::filesystem::path& path : going) EVERLONG_RETURN_IF_ERROR(RemoveFile(path));
  return OkStatus();
}

Status EraseRange(const UniqueFd& file, const std::filesystem::path& path, int64_t begin, int64_t end) {
  if (::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin) == 0) return OkStatus();
  if (errno != EOPNOTSUPP && errno != ENOSYS) return ErrnoError("cannot erase a part of", path, errno);
  // A file system without holes: overwrite the bytes with zeros.
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  const std::vector<std::byte> zeros(static_cast<size_t>(std::min(kCopyBytes, end - begin)));
  for (int64_t at = begin; at < std::min(end, size); at += std::ssize(zeros)) {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(std::ssize(zeros), std::min(end, size) - at));
    const std::span<const std::byte> piece = std::span(zeros).first(bytes);
    EVERLONG_RETURN_IF_ERROR(WriteAt(file, path, at, std::span(&piece, 1)));
  }
  return OkStatus();
}

Result<int64_t> AllocatedBytes(const std::filesystem::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return 0;
    return ErrnoError("cannot get the size of", path, errno);
  }
  constexpr int64_t kBlockBytes = 512;  // whatever the file system's own block size
  return int64_t{status.st_blocks} * kBlockBytes;
}

Result<int64_t> LinkCount(const UniqueFd& file, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return ErrnoError("cannot count the hard links of", path, errno);
  return static_cast<int64_t>(status.st_nlink);
}

Status CopyRange(const UniqueFd& from, const std::filesystem::path& from_path, const UniqueFd& to,
                 const std::filesystem::path& to_path, int64_t begin, int64_t end) {
  std::vector<std::byte> buffer;
  for (int64_t at = begin; at < end; at += std::ssize(buffer)) {
    buffer.resize(static_cast<size_t>(std::min(kCopyBytes, end - at)));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(from, from_path, at, buffer));
    if (count == 0) break;
    buffer.resize(static_cast<size_t>(count));
    const std::span<const std::byte> piece = buffer;
    EVERLONG_RETURN_IF_ERROR(WriteAt(to, to_path, at, std::span(&piece, 1)));
  }
  return OkStatus();
}

Status CloneFile(const std::filesystem::path& from, const std::filesystem::path& to, bool may_link) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd source, OpenFile(from, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd target, OpenFile(to, O_RDWR | O_CREAT | O_EXCL));
  if (::ioctl(target.get(), FICLONE, source.get()) == 0) return SyncFile(target, to);
  if (may_link) {
    EVERLONG_RETURN_IF_ERROR(RemoveFile(to));
    if (::link(from.c_str(), to.c_str()) == 0) return OkStatus();
    EVERLONG_ASSIGN_OR_RETURN(target, OpenFile(to, O_RDWR | O_CREAT | O_EXCL));
  }
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(source, from));
  EVERLONG_RETURN_IF_ERROR(CopyRange(source, from, target, to, 0, size));
  return SyncFile(target, to);
}

Status LockFile(const UniqueFd& file, const std::filesystem::path& path, LockKind kind) {
  int locked = -1;
  do {
    locked = ::flock(file.get(), kind == LockKind::kShared ? LOCK_SH : LOCK_EX);
  } while (locked != 0 && errno == EINTR);
  return locked == 0 ? OkStatus() : ErrnoError("cannot lock", path, errno);
}

}  // namespace everlong
