// Files as values: owned descriptors, positioned I/O that is whole or a Status, and the fsyncs that make names durable.
// Every failure is kIoError with the path and the operating system's text. Thread-safe as the calls of the system are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "everlong/base/status.h"

namespace everlong {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  [[nodiscard]] int get() const { return fd_; }

 private:
  void Reset();
  int fd_ = -1;
};

// kIoError "<action> '<path>': <text of error_number>".
Status ErrnoError(std::string_view action, const std::filesystem::path& path, int error_number);

// Closed on exec; created files are 0600. kNotFound when there is no such file, or no folder for one.
Result<UniqueFd> OpenFile(const std::filesystem::path& path, int flags);

Result<int64_t> FileSize(const UniqueFd& file, const std::filesystem::path& path);

// Fills `out` from `offset`. Returns how many bytes there were: less than out.size() only at the end of the file.
Result<int64_t> ReadAt(const UniqueFd& file, const std::filesystem::path& path, int64_t offset,
                       std::span<std::byte> out);

// Writes the pieces back to back from `offset`, all of them or an error.
Status WriteAt(const UniqueFd& file, const std::filesystem::path& path, int64_t offset,
               std::span<const std::span<const std::byte>> pieces);

Status SyncFile(const UniqueFd& file, const std::filesystem::path& path);

// Makes names created in, renamed in or removed from `folder` durable.
Status SyncFolder(const std::filesystem::path& folder);

// The same place under a name that holds wherever the process goes. kIoError when the current folder is gone.
Result<std::filesystem::path> AbsolutePath(const std::filesystem::path& path);

// Creates `folder` with mode 0700, its parents with the process' defaults, durably; one that exists is left as it is.
Status MakeFolder(const std::filesystem::path& folder);

// A new file of these bytes in the place of `path`, or the old one still there: written as `temporary`, which lies in
// the same folder, fsync, rename, fsync of the folder.
Status ReplaceFile(const std::filesystem::path& path, const std::filesystem::path& temporary,
                   std::span<const std::byte> bytes);

// Gives a file another name in the same folder, durably; the file that had it is gone.
Status RenameFile(const std::filesystem::path& from, const std::filesystem::path& to);

// Removes the name; durable after SyncFolder. No file of that name is no failure.
Status RemoveFile(const std::filesystem::path& path);

// The same for every file of a folder whose name `goes` picks. No folder is no failure.
Status RemoveFiles(const std::filesystem::path& folder,
                   const std::function<bool(const std::filesystem::path& name)>& goes);

// Gives [begin, end) of a file back to the disk, so that it reads as zeros; the file keeps its size. begin and end are
// multiples of 4096; end may lie behind the end of the file.
Status EraseRange(const UniqueFd& file, const std::filesystem::path& path, int64_t begin, int64_t end);

// Bytes of the disk that a file takes, holes left out; 0 when there is no such file. Never opens it: closing a file
// that SQLite has open would end SQLite's locks on it.
Result<int64_t> AllocatedBytes(const std::filesystem::path& path);

// Copies [begin, end) of a file to the same place in another; ends with the file, if that is shorter.
Status CopyRange(const UniqueFd& from, const std::filesystem::path& from_path, const UniqueFd& to,
                 const std::filesystem::path& to_path, int64_t begin, int64_t end);

// A second file with the same bytes, durable: by reflink, else, with `may_link`, as a second name of the same file,
// else by copying. `to` must not exist.
Status CloneFile(const std::filesystem::path& from, const std::filesystem::path& to, bool may_link);

// How many names a file has.
Result<int64_t> LinkCount(const UniqueFd& file, const std::filesystem::path& path);

// An flock on an open file or folder, waited for; it ends when the descriptor closes.
enum class LockKind { kShared, kExclusive };
Status LockFile(const UniqueFd& file, const std::filesystem::path& path, LockKind kind);

}  // namespace everlong
