#include "everlong/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <memory>
#include <system_error>
#include <vector>

namespace everlong {
namespace {

constexpr size_t kPiecesPerCall = 64;  // far below every system's IOV_MAX
constexpr int64_t kCopyBytes = int64_t{4} << 20;
constexpr int64_t kUnsizedBytes = 4096;  // read first of a file that says no size
constexpr mode_t kFileMode = 0600;
constexpr mode_t kOwnerAlone = 0700;
constexpr mode_t kProcessDefault = 0777;  // less the umask

// Kernels before 5.6, and sandboxes that do not know the call, have none.
int OpenAt2(int folder, const char* name, const open_how& how) {
  return static_cast<int>(::syscall(SYS_openat2, folder, name, &how, sizeof how));
}

// The same, one component after the other, none of which is a link.
UniqueFd OpenByComponent(int folder, const std::string& name, int flags) {
  const std::filesystem::path path(name);
  UniqueFd above;
  auto component = path.begin();
  for (auto next = std::next(component); next != path.end(); ++component, ++next) {
    above = UniqueFd(::openat(above.get() >= 0 ? above.get() : folder, component->c_str(),
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (above.get() < 0) return above;
  }
  return UniqueFd(::openat(above.get() >= 0 ? above.get() : folder, component->c_str(), flags, kFileMode));
}

UniqueFd OpenBeneath(int folder, const std::string& name, int flags) {
  open_how how = {};
  // A pipe of that name is not waited for.
  how.flags = static_cast<uint64_t>(flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  how.mode = (flags & O_CREAT) != 0 ? kFileMode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS;
  UniqueFd file(OpenAt2(folder, name.c_str(), how));
  if (file.get() >= 0 || (errno != ENOSYS && errno != EPERM)) return file;
  return OpenByComponent(folder, name, static_cast<int>(how.flags));
}

// Bytes of a file that are no hole.
struct Data {
  int64_t begin = 0;
  int64_t end = 0;
};

// Return the first of them in [at, end); empty and at its end when there are none. A system that cannot tell has none
// but data.
Data NextData(const UniqueFd& file, int64_t at, int64_t end) {
  const off_t data = ::lseek(file.get(), at, SEEK_DATA);
  if (data < 0) return errno == ENXIO ? Data{end, end} : Data{at, end};
  const off_t hole = ::lseek(file.get(), data, SEEK_HOLE);
  return {std::min<int64_t>(data, end), hole < 0 ? end : std::min<int64_t>(hole, end)};
}

bool Writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

Status OtherName(const FilePath& path, const char* done) {
  return CorruptError("'" + path.string() + "' has another name, too, and is not " + done +
                      ": it may be another's file");
}

Status RequirePlain(const UniqueFd& file, const FilePath& path, int flags, Names names) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return ErrnoError("cannot look at", path, errno);
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    return CorruptError("'" + path.string() + "' is neither a file nor a folder");
  }
  if ((flags & O_DIRECTORY) == 0 && S_ISDIR(status.st_mode)) return CorruptError("'" + path.string() + "' is a folder");
  if (Writes(flags) && names == Names::kOne && status.st_nlink > 1) {
    return OtherName(path, "written");
  }
  return OkStatus();
}

Status OpenError(const FilePath& path, int flags, int error_number) {
  if (error_number == ENOENT && (flags & O_CREAT) != 0) return NotFoundError("no folder for '" + path.string() + "'");
  if (error_number == ENOENT) return NotFoundError("no file '" + path.string() + "'");
  if (error_number == EEXIST) return AlreadyExistsError("there is a file '" + path.string() + "' already");
  // A link in the place of a folder is no folder.
  if (path.beneath() && (error_number == ELOOP || error_number == EXDEV || error_number == ENOTDIR)) {
    return CorruptError("'" + path.string() +
                        "' is or lies behind a link, or what is no folder, or on another file system: not followed");
  }
  return ErrnoError("cannot open", path, error_number);
}

// For calls that take a folder's descriptor and a name in it: no link leads to the folder.
struct NameInFolder {
  UniqueFd opened;  // where the folder is not the path's own
  int folder = AT_FDCWD;
  std::string name;
};

Result<NameInFolder> InFolder(const FilePath& path) {
  NameInFolder in{.opened = UniqueFd(), .folder = path.folder(), .name = path.name()};
  const size_t slash = in.name.rfind('/');
  if (!path.beneath() || slash == std::string::npos) return in;
  in.opened = OpenBeneath(in.folder, in.name.substr(0, slash), O_RDONLY | O_DIRECTORY);
  if (in.opened.get() < 0) return OpenError(path.parent(), O_RDONLY, errno);
  in.folder = in.opened.get();
  in.name.erase(0, slash + 1);
  return in;
}

// kNotFound for what is not there; beneath an opened folder of a link itself.
Status StatOf(const FilePath& path, struct stat& status) {
  EVERLONG_ASSIGN_OR_RETURN(const NameInFolder in, InFolder(path));
  if (::fstatat(in.folder, in.name.c_str(), &status, path.beneath() ? AT_SYMLINK_NOFOLLOW : 0) == 0) return OkStatus();
  if (errno == ENOENT || errno == ENOTDIR) return NotFoundError("no file '" + path.string() + "'");
  return ErrnoError("cannot look at", path, errno);
}

// A folder and those above it that are not there, each durable in the one that holds it.
Status MakeFolders(const FilePath& folder, mode_t mode) {
  if (folder.path().empty()) return OkStatus();
  EVERLONG_ASSIGN_OR_RETURN(const FileKind kind, KindOf(folder));
  if (kind == FileKind::kFolder) return OkStatus();
  const FilePath parent = folder.parent();
  // "a/" and "a/." are "a", and have no other parent than it has.
  const std::string name = folder.filename();
  if (name.empty() || name == ".") return MakeFolders(parent, mode);
  EVERLONG_RETURN_IF_ERROR(MakeFolders(parent, kProcessDefault));
  EVERLONG_ASSIGN_OR_RETURN(const NameInFolder in, InFolder(folder));
  if (::mkdirat(in.folder, in.name.c_str(), mode) != 0) {
    const int error_number = errno;
    const Result<FileKind> now = KindOf(folder);
    const bool made_meanwhile = error_number == EEXIST && now.ok() && *now == FileKind::kFolder;
    if (folder.beneath() && now.ok() && *now != FileKind::kNone && !made_meanwhile) {
      return CorruptError("'" + folder.string() + "' is no folder");
    }
    if (!made_meanwhile) return ErrnoError("cannot create folder", folder, error_number);
  }
  return SyncFolder(parent);
}

Status WriteAndRename(const FilePath& path, const FilePath& temporary, std::span<const std::byte> bytes) {
  EVERLONG_RETURN_IF_ERROR(RemoveFile(temporary));
  {
    EVERLONG_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(temporary, O_RDWR | O_CREAT | O_EXCL));
    EVERLONG_RETURN_IF_ERROR(WriteAt(file, temporary, 0, std::span(&bytes, 1)));
    EVERLONG_RETURN_IF_ERROR(SyncFile(file, temporary));
  }
  return RenameFile(temporary, path);
}

}  // namespace

Status ErrnoError(std::string_view action, const FilePath& path, int error_number) {
  return IoError(std::string(action) + " '" + path.string() +
                 "': " + std::error_code(error_number, std::generic_category()).message());
}

Result<UniqueFd> OpenFile(const FilePath& path, int flags, Names names) {
  if (!path.beneath()) {
    UniqueFd file(::open(path.name().c_str(), flags | O_CLOEXEC, kFileMode));
    if (file.get() < 0) return OpenError(path, flags, errno);
    return file;
  }
  // Emptied once it is known to be ours.
  UniqueFd file = OpenBeneath(path.folder(), path.name(), flags & ~O_TRUNC);
  if (file.get() < 0) return OpenError(path, flags, errno);
  EVERLONG_RETURN_IF_ERROR(RequirePlain(file, path, flags, names));
  if ((flags & O_TRUNC) != 0 && ::ftruncate(file.get(), 0) != 0) return ErrnoError("cannot empty", path, errno);
  return file;
}

Result<FileKind> KindOf(const FilePath& path) {
  struct stat status = {};
  const Status looked = StatOf(path, status);
  if (looked.code() == StatusCode::kNotFound) return FileKind::kNone;
  EVERLONG_RETURN_IF_ERROR(looked);
  if (S_ISREG(status.st_mode)) return FileKind::kFile;
  return S_ISDIR(status.st_mode) ? FileKind::kFolder : FileKind::kOther;
}

bool Exists(const FilePath& path) {
  const Result<FileKind> kind = KindOf(path);
  return kind.ok() && *kind != FileKind::kNone;
}

Result<std::vector<std::string>> NamesIn(const FilePath& folder) {
  std::vector<std::string> names;
  Result<UniqueFd> opened = OpenFile(folder, O_RDONLY | O_DIRECTORY);
  if (opened.status().code() == StatusCode::kNotFound) return names;
  EVERLONG_RETURN_IF_ERROR(opened.status());
  // The stream closes its descriptor, and moves that one's place in the folder.
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(::fcntl(opened->get(), F_DUPFD_CLOEXEC, 0)), ::closedir);
  if (stream == nullptr) return ErrnoError("cannot list", folder, errno);
  for (errno = 0; const dirent* const entry = ::readdir(stream.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return ErrnoError("cannot list", folder, errno);
  return names;
}

Result<int64_t> FileSize(const UniqueFd& file, const FilePath& path) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return ErrnoError("cannot get the size of", path, errno);
  return static_cast<int64_t>(status.st_size);
}

Result<int64_t> ReadAt(const UniqueFd& file, const FilePath& path, int64_t offset, std::span<std::byte> out) {
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

Result<std::vector<std::byte>> ReadWhole(const FilePath& path, int64_t most, Names names) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return ErrnoError("cannot look at", path, errno);
  if (names == Names::kOne && status.st_nlink > 1) return OtherName(path, "read");
  const auto too_large = [&] {
    return CorruptError("'" + path.string() + "' is too large: more than " + std::to_string(most) + " bytes");
  };
  if (status.st_size > most) return too_large();
  EVERLONG_RETURN_IF_ERROR(RequireOnDisk(file, path, 0, status.st_size));
  std::vector<std::byte> bytes;
  for (int64_t room = std::max<int64_t>(status.st_size, kUnsizedBytes);; room *= 2) {
    const auto done = bytes.size();
    bytes.resize(static_cast<size_t>(room) + 1);  // a byte that is not there tells the end
    const std::span<std::byte> rest = std::span(bytes).subspan(done);
    EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(file, path, static_cast<int64_t>(done), rest));
    bytes.resize(done + static_cast<size_t>(count));
    if (std::ssize(bytes) > most) return too_large();
    if (count < std::ssize(rest)) return bytes;
  }
}

Status WriteAt(const UniqueFd& file, const FilePath& path, int64_t offset,
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

Status SyncFile(const UniqueFd& file, const FilePath& path) {
  if (::fsync(file.get()) != 0) return ErrnoError("cannot make durable", path, errno);
  return OkStatus();
}

Status SyncFolder(const FilePath& folder) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd handle, OpenFile(folder, O_RDONLY | O_DIRECTORY));
  return SyncFile(handle, folder);
}

Result<std::filesystem::path> AbsolutePath(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return ErrnoError("cannot get the current folder for", path, error.value());
  return absolute;
}

Status MakeFolder(const FilePath& folder) { return MakeFolders(folder, kOwnerAlone); }

Status ReplaceFile(const FilePath& path, const FilePath& temporary, std::span<const std::byte> bytes) {
  Status replaced = WriteAndRename(path, temporary, bytes);
  if (!replaced.ok()) static_cast<void>(RemoveFile(temporary));
  return replaced;
}

Status RenameFile(const FilePath& from, const FilePath& to) {
  EVERLONG_ASSIGN_OR_RETURN(const NameInFolder source, InFolder(from));
  EVERLONG_ASSIGN_OR_RETURN(const NameInFolder target, InFolder(to));
  if (::renameat(source.folder, source.name.c_str(), target.folder, target.name.c_str()) != 0) {
    return ErrnoError("cannot replace", to, errno);
  }
  return SyncFolder(to.parent());
}

Status RemoveFile(const FilePath& path) {
  const Result<NameInFolder> in = InFolder(path);
  if (in.status().code() == StatusCode::kNotFound) return OkStatus();
  EVERLONG_RETURN_IF_ERROR(in.status());
  if (::unlinkat(in->folder, in->name.c_str(), 0) != 0 && errno != ENOENT) {
    return ErrnoError("cannot remove", path, errno);
  }
  return OkStatus();
}

Status RemoveFiles(const FilePath& folder, const std::function<bool(std::string_view name)>& goes) {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  for (const std::string& name : names) {
    if (goes(name)) EVERLONG_RETURN_IF_ERROR(RemoveFile(folder / name));
  }
  return OkStatus();
}

void RemoveAll(const FilePath& folder) {
  const Result<std::vector<std::string>> names = NamesIn(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const FilePath path = folder / name;
    const Result<FileKind> kind = KindOf(path);
    if (kind.ok() && *kind == FileKind::kFolder) {
      RemoveAll(path);
    } else {
      static_cast<void>(RemoveFile(path));
    }
  }
  // The opened folder itself goes by its path, and only as long as that leads to it.
  if (folder.beneath() && folder.name() == ".") {
    if (folder.IsStillThere()) ::rmdir(folder.path().c_str());
    return;
  }
  const Result<NameInFolder> in = InFolder(folder);
  if (in.ok()) ::unlinkat(in->folder, in->name.c_str(), AT_REMOVEDIR);
}

Status EraseRange(const UniqueFd& file, const FilePath& path, int64_t begin, int64_t end) {
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

Result<int64_t> AllocatedBytes(const FilePath& path) {
  struct stat status = {};
  const Status looked = StatOf(path, status);
  if (looked.code() == StatusCode::kNotFound) return 0;
  EVERLONG_RETURN_IF_ERROR(looked);
  constexpr int64_t kBlockBytes = 512;  // whatever the file system's own block size
  return int64_t{status.st_blocks} * kBlockBytes;
}

FileStamp StampOf(const FilePath& path) {
  struct stat status = {};
  if (!StatOf(path, status).ok()) return {};
  return {status.st_size, int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec, status.st_ino};
}

Result<int64_t> LinkCount(const FilePath& path) {
  struct stat status = {};
  EVERLONG_RETURN_IF_ERROR(StatOf(path, status));
  if (!S_ISREG(status.st_mode)) return CorruptError("'" + path.string() + "' is no file");
  return static_cast<int64_t>(status.st_nlink);
}

bool IsNamed(const UniqueFd& file, const FilePath& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(file.get(), &opened) == 0 && StatOf(path, named).ok() && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

Result<int64_t> LinkCount(const UniqueFd& file, const FilePath& path) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return ErrnoError("cannot count the hard links of", path, errno);
  return static_cast<int64_t>(status.st_nlink);
}

Status RequireOnDisk(const UniqueFd& file, const FilePath& path, int64_t begin, int64_t end) {
  if (end - begin <= kBelievedBytes) return OkStatus();
  int64_t left = (end - begin) / kMostCompressed;
  for (int64_t at = begin; left > 0 && at < end;) {
    const Data data = NextData(file, at, end);
    left -= data.end - data.begin;
    at = data.end;
  }
  if (left <= 0) return OkStatus();
  return CorruptError("'" + path.string() + "' has " + std::to_string(end - begin) +
                      " bytes that are nearly all holes");
}

Status CopyRange(const UniqueFd& from, const FilePath& from_path, const UniqueFd& to, const FilePath& to_path,
                 int64_t begin, int64_t end) {
  std::vector<std::byte> buffer;
  Data data;
  for (int64_t at = begin; at < end; at += std::ssize(buffer)) {
    if (at >= data.end) data = NextData(from, at, end);
    at = std::max(at, data.begin);
    buffer.resize(static_cast<size_t>(std::min(kCopyBytes, data.end - at)));
    EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(from, from_path, at, buffer));
    if (count == 0) break;
    buffer.resize(static_cast<size_t>(count));
    const std::span<const std::byte> piece = buffer;
    EVERLONG_RETURN_IF_ERROR(WriteAt(to, to_path, at, std::span(&piece, 1)));
  }
  return OkStatus();
}

Status CloneFile(const FilePath& from, const FilePath& to, bool may_link) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd source, OpenFile(from, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd target, OpenFile(to, O_RDWR | O_CREAT | O_EXCL));
  if (::ioctl(target.get(), FICLONE, source.get()) == 0) return SyncFile(target, to);
  if (may_link) {
    EVERLONG_RETURN_IF_ERROR(RemoveFile(to));
    EVERLONG_ASSIGN_OR_RETURN(const NameInFolder one, InFolder(from));
    EVERLONG_ASSIGN_OR_RETURN(const NameInFolder other, InFolder(to));
    if (::linkat(one.folder, one.name.c_str(), other.folder, other.name.c_str(), 0) == 0) return OkStatus();
    EVERLONG_ASSIGN_OR_RETURN(target, OpenFile(to, O_RDWR | O_CREAT | O_EXCL));
  }
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(source, from));
  EVERLONG_RETURN_IF_ERROR(CopyRange(source, from, target, to, 0, size));
  if (::ftruncate(target.get(), size) != 0) return ErrnoError("cannot size", to, errno);  // it may end in a hole
  return SyncFile(target, to);
}

Status LockFile(const UniqueFd& file, const FilePath& path, LockKind kind) {
  int locked = -1;
  do {
    locked = ::flock(file.get(), kind == LockKind::kShared ? LOCK_SH : LOCK_EX);
  } while (locked != 0 && errno == EINTR);
  return locked == 0 ? OkStatus() : ErrnoError("cannot lock", path, errno);
}

}  // namespace everlong
