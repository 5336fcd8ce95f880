// File operations that return a Status: owned descriptors, reads and writes at an offset, and durable names. A read or
// write is whole or an error. Every failure is kIoError with the path and the operating system's text. The functions
// are as thread-safe as the system calls that they make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong {

// Return kIoError "<action> '<path>': <text of error_number>".
Status ErrnoError(std::string_view action, const FilePath& path, int error_number);

// Whether a file may have several names (hard links). The other name may be somebody else's.
enum class Names { kOne, kAny };

// Closed on exec; created files are 0600. kNotFound when there is no such file, or no folder for one.
// kAlreadyExists where it is to be made, and a file or a link has that name. Beneath an opened
// folder kCorrupt for a link, also in the place of a folder, a file system of its own, what is neither file nor folder,
// and, where it is to be written, a file of several names.
Result<UniqueFd> OpenFile(const FilePath& path, int flags, Names names = Names::kOne);

enum class FileKind { kNone, kFile, kFolder, kOther };
// Return what has that name. Beneath an opened folder a link counts as a link, not as the file it leads to. kIoError
// where the system cannot tell.
Result<FileKind> KindOf(const FilePath& path);
// Return whether anything has that name; false when the system cannot tell.
bool Exists(const FilePath& path);

// Return the names in a folder, in no order; none when the folder does not exist.
Result<std::vector<std::string>> NamesIn(const FilePath& folder);

Result<int64_t> FileSize(const UniqueFd& file, const FilePath& path);

// Fill `out` from `offset`. Returns how many bytes there were: less than out.size() only at the end of the file.
Result<int64_t> ReadAt(const UniqueFd& file, const FilePath& path, int64_t offset, std::span<std::byte> out);

// Return a whole file. kCorrupt when it has more than `most` bytes or, if it may have one name only, another name. The
// system's own files (/proc) say no size, and are read all the same.
Result<std::vector<std::byte>> ReadWhole(const FilePath& path, int64_t most, Names names = Names::kAny);

// Write all the pieces back to back from `offset`, or return an error.
Status WriteAt(const UniqueFd& file, const FilePath& path, int64_t offset,
               std::span<const std::span<const std::byte>> pieces);

Status SyncFile(const UniqueFd& file, const FilePath& path);

// Make names durable that were created in, renamed in or removed from `folder`.
Status SyncFolder(const FilePath& folder);

// Return the place as an absolute path, for when the process changes its folder. kIoError when that folder is gone.
Result<std::filesystem::path> AbsolutePath(const std::filesystem::path& path);

// Create `folder` durably, with mode 0700. Its parents get the process' defaults. An existing folder stays as it is.
Status MakeFolder(const FilePath& folder);

// Replace the file at `path` by these bytes, or leave the old file whole. It writes `temporary`, which is in the same
// folder, then does fsync, rename and an fsync of the folder.
Status ReplaceFile(const FilePath& path, const FilePath& temporary, std::span<const std::byte> bytes);

// Rename a file inside its folder, durably. It replaces a file that already has the name `to`.
Status RenameFile(const FilePath& from, const FilePath& to);

// Remove a name. It is durable after SyncFolder. A file that does not exist is no failure.
Status RemoveFile(const FilePath& path);

// Remove every file of `folder` that `goes` returns true for. A folder that does not exist is no failure.
Status RemoveFiles(const FilePath& folder, const std::function<bool(std::string_view name)>& goes);

// Remove a folder and all in it, as far as possible. A link is removed, and the file it leads to stays.
void RemoveAll(const FilePath& folder);

// Give [begin, end) of a file back to the disk. It then reads as zeros, and the file keeps its size. `begin` and `end`
// are multiples of 4096. `end` may lie behind the end of the file.
Status EraseRange(const UniqueFd& file, const FilePath& path, int64_t begin, int64_t end);

// Return the bytes that a file takes on the disk, without its holes; 0 when there is no such file. It never opens the
// file: closing a file that SQLite has open would end SQLite's locks on it.
Result<int64_t> AllocatedBytes(const FilePath& path);

// Return kCorrupt where [begin, end) of a file is nearly all holes. Call it before RAM is taken for them: a hole costs
// whoever sends a folder nothing. Up to kBelievedBytes are always believed. Of more, one in kMostCompressed must be on
// the disk, which file systems that compress have, too.
inline constexpr int64_t kBelievedBytes = int64_t{64} << 20;
inline constexpr int64_t kMostCompressed = 64;
Status RequireOnDisk(const UniqueFd& file, const FilePath& path, int64_t begin, int64_t end);

// Copy [begin, end) of a file to the same place in another, which has nothing there yet: holes stay holes. It stops at
// the end of the source.
Status CopyRange(const UniqueFd& from, const FilePath& from_path, const UniqueFd& to, const FilePath& to_path,
                 int64_t begin, int64_t end);

// Clone a file durably: by reflink, or, with `may_link`, by hard link, or by copying. `to` must not exist.
Status CloneFile(const FilePath& from, const FilePath& to, bool may_link);

// Size, time and inode of a file: they change when it is written or replaced. All 0 when there is none.
struct FileStamp {
  int64_t size = 0;
  int64_t modified_ns = 0;
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};
FileStamp StampOf(const FilePath& path);

// Return how many names (hard links) a file has. It never opens the file. kNotFound; kCorrupt when it is no file.
Result<int64_t> LinkCount(const FilePath& path);

// Return whether `path` names this open file.
bool IsNamed(const UniqueFd& file, const FilePath& path);

// Return how many names (hard links) an open file has.
Result<int64_t> LinkCount(const UniqueFd& file, const FilePath& path);

// Wait for an flock on an open file or folder. It ends when the descriptor closes.
enum class LockKind { kShared, kExclusive };
Status LockFile(const UniqueFd& file, const FilePath& path, LockKind kind);

}  // namespace everlong
