// Files as values: owned descriptors, positioned I/O that is whole or a Status, and the fsyncs that make names durable.
// Every failure is kIoError with the path and the operating system's text. Thread-safe as the calls of the system are.
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

// kIoError "<action> '<path>': <text of error_number>".
Status ErrnoError(std::string_view action, const FilePath& path, int error_number);

// Whether a file that is opened to be written may have further names. What has one may be a file of somebody else's.
enum class Names { kOne, kAny };

// Closed on exec; created files are 0600. kNotFound when there is no such file, or no folder for one. Beneath an opened
// folder kCorrupt for a link, a file system of its own, what is neither file nor folder, and, where it is to be
// written, a file of several names.
Result<UniqueFd> OpenFile(const FilePath& path, int flags, Names names = Names::kOne);

// What has that name; beneath an opened folder a link is itself and not what it leads to.
enum class FileKind { kNone, kFile, kFolder, kOther };
// kIoError where the system cannot tell.
Result<FileKind> KindOf(const FilePath& path);
// The same, with kNone where the system cannot tell.
bool Exists(const FilePath& path);

// Names in a folder, in no order; none when there is no folder.
Result<std::vector<std::string>> NamesIn(const FilePath& folder);

Result<int64_t> FileSize(const UniqueFd& file, const FilePath& path);

// Fills `out` from `offset`. Returns how many bytes there were: less than out.size() only at the end of the file.
Result<int64_t> ReadAt(const UniqueFd& file, const FilePath& path, int64_t offset, std::span<std::byte> out);

// Writes the pieces back to back from `offset`, all of them or an error.
Status WriteAt(const UniqueFd& file, const FilePath& path, int64_t offset,
               std::span<const std::span<const std::byte>> pieces);

Status SyncFile(const UniqueFd& file, const FilePath& path);

// Makes names created in, renamed in or removed from `folder` durable.
Status SyncFolder(const FilePath& folder);

// The same place under a name that holds wherever the process goes. kIoError when the current folder is gone.
Result<std::filesystem::path> AbsolutePath(const std::filesystem::path& path);

// Creates `folder` with mode 0700, its parents with the process' defaults, durably; one that exists is left as it is.
Status MakeFolder(const FilePath& folder);

// A new file of these bytes in the place of `path`, or the old one still there: written as `temporary`, which lies in
// the same folder, fsync, rename, fsync of the folder.
Status ReplaceFile(const FilePath& path, const FilePath& temporary, std::span<const std::byte> bytes);

// Gives a file another name in the same folder, durably; the file that had it is gone.
Status RenameFile(const FilePath& from, const FilePath& to);

// Removes the name; durable after SyncFolder. No file of that name is no failure.
Status RemoveFile(const FilePath& path);

// The same for every file of a folder whose name `goes` picks. No folder is no failure.
Status RemoveFiles(const FilePath& folder, const std::function<bool(std::string_view name)>& goes);

// Removes a folder with all in it, as far as it can. Links go, what they lead to stays.
void RemoveAll(const FilePath& folder);

// Gives [begin, end) of a file back to the disk, so that it reads as zeros; the file keeps its size. begin and end are
// multiples of 4096; end may lie behind the end of the file.
Status EraseRange(const UniqueFd& file, const FilePath& path, int64_t begin, int64_t end);

// Bytes of the disk that a file takes, holes left out; 0 when there is no such file. Never opens it: closing a file
// that SQLite has open would end SQLite's locks on it.
Result<int64_t> AllocatedBytes(const FilePath& path);

// Copies [begin, end) of a file to the same place in another; ends with the file, if that is shorter.
Status CopyRange(const UniqueFd& from, const FilePath& from_path, const UniqueFd& to, const FilePath& to_path,
                 int64_t begin, int64_t end);

// A second file with the same bytes, durable: by reflink, else, with `may_link`, as a second name of the same file,
// else by copying. `to` must not exist.
Status CloneFile(const FilePath& from, const FilePath& to, bool may_link);

// What changes when another file has the name, or this one was written to; all 0 when there is none. Never opens it.
struct FileStamp {
  int64_t size = 0;
  int64_t modified_ns = 0;
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};
FileStamp StampOf(const FilePath& path);

// How many names a file has, by one of them; never opens it. kNotFound, kCorrupt for what is no file.
Result<int64_t> OwnNames(const FilePath& path);

// Whether `path` names this open file.
bool IsNamed(const UniqueFd& file, const FilePath& path);

// How many names a file has.
Result<int64_t> LinkCount(const UniqueFd& file, const FilePath& path);

// An flock on an open file or folder, waited for; it ends when the descriptor closes.
enum class LockKind { kShared, kExclusive };
Status LockFile(const UniqueFd& file, const FilePath& path, LockKind kind);

}  // namespace everlong
