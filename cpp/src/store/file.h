// Files as values: owned descriptors, positioned I/O that is whole or a Status, and the fsyncs that make names durable.
// Every failure is kIoError with the path and the operating system's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "everlong/base/status.h"

namespace everlong::store {

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

// Closed on exec; created files are 0600. kNotFound when there is no such file.
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

// Creates `folder` with mode 0700, its parents with the process' defaults; one that exists is left as it is.
Status MakeFolder(const std::filesystem::path& folder);

}  // namespace everlong::store
