#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace everlong::store {
namespace {

constexpr size_t kPiecesPerCall = 64;  // far below every system's IOV_MAX

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
  size_t within = 0;  // bytes of it that are
  while (piece < pieces.size()) {
    std::array<iovec, kPiecesPerCall> vector = {};
    size_t used = 0;
    for (size_t i = piece; i < pieces.size() && used < vector.size(); ++i) {
      const std::span<const std::byte> rest = pieces[i].subspan(i == piece ? within : 0);
      // iovec is shared with readv and so not const; pwritev does not write through it.
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
  const std::filesystem::path name = folder.empty() ? std::filesystem::path(".") : folder;
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd handle, OpenFile(name, O_RDONLY | O_DIRECTORY));
  return SyncFile(handle, name);
}

Status MakeFolder(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return OkStatus();
  const std::filesystem::path parent = folder.parent_path();
  if (!parent.empty()) {
    std::filesystem::create_directories(parent, error);
    if (error) return ErrnoError("cannot create folder", parent, error.value());
  }
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError("cannot create folder", folder, errno);
  }
  return SyncFolder(parent);
}

}  // namespace everlong::store
