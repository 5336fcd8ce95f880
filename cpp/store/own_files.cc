#include "own_files.h"

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include "everlong/base/file.h"

namespace everlong::store {
namespace {

constexpr std::string_view kTemporary = ".tmp";  // left over where a crash cut a replacement
constexpr size_t kLongestName = 64;

// Names come from exported files too, so no other name may ever become a path.
Status RequireName(std::string_view name) {
  const auto is_lower = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  const bool plain = !name.empty() && name.size() <= kLongestName && is_lower(name.front()) &&
                     std::ranges::all_of(name, [&](char c) { return is_lower(c) || c == '_' || c == '.'; });
  if (plain && !name.ends_with(kTemporary)) return OkStatus();
  return InvalidArgumentError(
      "name of a file is \"" + std::string(name) + "\"; expected 1 to " + std::to_string(kLongestName) +
      " of a-z, 0-9, _ and . that begin with a letter or digit and do not end with " + std::string(kTemporary));
}

}  // namespace

Status OwnFiles::Put(std::string_view name, std::span<const std::byte> bytes) {
  EVERLONG_RETURN_IF_ERROR(RequireName(name));
  const std::scoped_lock lock(mutex_);
  if (!folder_) {
    in_ram_.insert_or_assign(std::string(name), std::vector<std::byte>(bytes.begin(), bytes.end()));
    return OkStatus();
  }
  EVERLONG_RETURN_IF_ERROR(MakeFolder(*folder_));
  return ReplaceFile(Path(name), Path(name) + kTemporary, bytes);
}

Status OwnFiles::RemoveLeftovers() {
  const std::scoped_lock lock(mutex_);
  if (!folder_) return OkStatus();
  return RemoveFiles(*folder_, [](std::string_view name) {
    return name.ends_with(kTemporary) && RequireName(name.substr(0, name.size() - kTemporary.size())).ok();
  });
}

Result<std::vector<std::byte>> OwnFiles::Get(std::string_view name) const {
  EVERLONG_RETURN_IF_ERROR(RequireName(name));
  if (!folder_) {
    const std::scoped_lock lock(mutex_);
    const auto found = in_ram_.find(name);
    if (found == in_ram_.end()) return NotFoundError("no file \"" + std::string(name) + "\" in this memory");
    return found->second;
  }
  return ReadWhole(Path(name), std::numeric_limits<int64_t>::max());
}

Result<std::vector<std::string>> OwnFiles::Names() const {
  std::vector<std::string> names;
  if (!folder_) {
    const std::scoped_lock lock(mutex_);
    for (const auto& [name, bytes] : in_ram_) names.push_back(name);
    return names;
  }
  EVERLONG_ASSIGN_OR_RETURN(names, NamesIn(*folder_));
  // What is no plain file, a link for example, is no file of the memory.
  std::erase_if(names, [this](const std::string& name) {
    const Result<FileKind> kind = KindOf(Path(name));
    return !RequireName(name).ok() || !kind.ok() || *kind != FileKind::kFile;
  });
  std::ranges::sort(names);
  return names;
}

int64_t OwnFiles::RamBytes() const {
  const std::scoped_lock lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [name, file] : in_ram_) bytes += std::ssize(name) + std::ssize(file);
  return bytes;
}

Status OwnFiles::CopyInto(OwnFiles& target) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names());
  if (names.empty()) return OkStatus();
  if (!folder_ || !target.folder_) {
    for (const std::string& name : names) {
      EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, Get(name));
      EVERLONG_RETURN_IF_ERROR(target.Put(name, bytes));
    }
    return OkStatus();
  }
  EVERLONG_RETURN_IF_ERROR(MakeFolder(*target.folder_));
  for (const std::string& name : names) EVERLONG_RETURN_IF_ERROR(CloneFile(Path(name), target.Path(name), true));
  return SyncFolder(*target.folder_);
}

}  // namespace everlong::store
