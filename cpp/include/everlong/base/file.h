// File operations that return a Status: owned descriptors, reads and writes at an offset, and durable names. A read or
// write is whole or an error. Every failure is kIoError with the path and the operating system's text. The functions
// are as thread-safe as the system calls that they make.
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

// Return kIoError "<action> '<path>': <text of error_number>".
Status ErrnoError(std::string_view action, const std::filesystem::path& path, int error_number);

// Open a file, closed on exec. A created file has mode 0600. kNotFound when the file, or its folder, does not exist.
Result<UniqueFd> OpenFile(const std::filesystem::path& path, int flags);

Result<int64_t> FileSize(const UniqueFd& file, const std::filesystem::path& path);

// Fill `out` from `offset`. Returns how many bytes there were: less than out.size() only at the end of the file.
Result<int64_t> ReadAt(const UniqueFd& file, const std::filesystem::path& path, int64_t offset,
                       std::span<std::byte> out);

// Write all the pieces back to back from `offset`, or return an error.
Status WriteAt(const UniqueFd& file, const std::filesystem::path& path, int64_t offset,
               std::span<const std::span<const std::byte>> pieces);

Status SyncFile(const UniqueFd& file, const std::filesystem::path& path);

// Make names durable that were created in, renamed in or removed from `folder`.
Status SyncFolder(const std::filesystem::path& folder);

// Return the place as an absolute path, for when the process changes its folder. kIoError when that folder is gone.
Result<std::filesystem::path> AbsolutePath(const std::filesystem::path& path);

// Create `folder` durably, with mode 0700. Its parents get the process' defaults. An existing folder stays as it is.
Status MakeFolder(const std::filesystem::path& folder);

// Replace the file at `path` by these bytes, or leave the old file whole. It writes `temporary`, which is in the same
// folder, then does fsync, rename and an fsync of the folder.
Status ReplaceFile(const std::filesystem::path& path, const std::filesystem::path& temporary,
                   std::span<const std::byte> bytes);

// Rename a file inside its folder, durably. It replaces a file that already has the name `to`.
Status RenameFile(const std::filesystem::path& from, const std::filesystem::path& to);

// Remove a name. It is durable after SyncFolder. A file that does not exist is no failure.
Status RemoveFile(const std::filesystem::path& path);

// Remove every file of `folder` that `goes` returns true for. A folder that does not exist is no failure.
Status RemoveFiles(const std::filesystem::path& folder,
                   const std::function<bool(const std::filesystem::path& name)>& goes);

// Give [begin, end) of a file back to the disk. It then reads as zeros, and the file keeps its size. `begin` and `end`
// are multiples of 4096. `end` may lie behind the end of the file.
Status EraseRange(const UniqueFd& file, const std::filesystem::path& path, int64_t begin, int64_t end);

// Return the bytes that a file takes on the disk, without its holes; 0 when there is no such file. It never opens the
// file: closing a file that SQLite has open would end SQLite's locks on it.
Result<int64_t> AllocatedBytes(const std::filesystem::path& path);

// Copy [begin, end) of a file to the same place in another. It stops at the end of the source.
Status CopyRange(const UniqueFd& from, const std::filesystem::path& from_path, const UniqueFd& to,
                 const std::filesystem::path& to_path, int64_t begin, int64_t end);

// Clone a file durably: by reflink, or, with `may_link`, by hard link, or by copying. `to` must not exist.
Status CloneFile(const std::filesystem::path& from, const std::filesystem::path& to, bool may_link);

// Return how many names (hard links) a file has.
Result<int64_t> LinkCount(const UniqueFd& file, const std::filesystem::path& path);

// Wait for an flock on an open file or folder. It ends when the descriptor closes.
enum class LockKind { kShared, kExclusive };
Status LockFile(const UniqueFd& file, const std::filesystem::path& path, LockKind kind);

}  // namespace everlong
