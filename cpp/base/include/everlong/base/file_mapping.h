// A file in the address space of this process: its bytes are read from the disk as they are used, and the system takes
// their RAM back when it needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong {

// The file may be renamed or removed meanwhile. It must not be cut short: to use bytes that are gone, or that the disk
// cannot read, ends the process with SIGBUS. So map only files that are never written again.
class FileMapping {
 public:
  FileMapping() = default;
  // Map the first `bytes` of an open file, which has so many. kIoError.
  static Result<FileMapping> Of(const UniqueFd& file, const FilePath& path, int64_t bytes);
  FileMapping(FileMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  FileMapping& operator=(FileMapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  // It begins at a page of the system.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit FileMapping(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace everlong
