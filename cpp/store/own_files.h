// Files that the owner of a memory keeps with it, by name. The store knows neither what they hold nor whether they fit
// its blocks: their owner checks them. Each is replaced as a whole, so a fork may have a second name for it.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"

namespace everlong::store {

// Thread-safe.
class OwnFiles {
 public:
  // The files are in RAM, or in a folder, which the first Put makes.
  explicit OwnFiles(std::optional<FilePath> folder) : folder_(std::move(folder)) {}

  // Put a file, durable on return, or not at all. kInvalidArgument for an invalid name (docs/format.md, "Own files").
  Status Put(std::string_view name, std::span<const std::byte> bytes);
  // Remove what a crash left of files that were to be replaced.
  Status RemoveLeftovers();
  // Return a file's bytes. kNotFound.
  [[nodiscard]] Result<std::vector<std::byte>> Get(std::string_view name) const;
  [[nodiscard]] Result<std::vector<std::string>> Names() const;  // ascending
  Status CopyInto(OwnFiles& target) const;
  [[nodiscard]] int64_t RamBytes() const;  // of files in RAM

 private:
  [[nodiscard]] FilePath Path(std::string_view name) const { return *folder_ / name; }

  const std::optional<FilePath> folder_;
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<std::byte>, std::less<>> in_ram_;
};

}  // namespace everlong::store
