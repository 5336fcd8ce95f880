#include "folder_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>
#include <system_error>

#include "everlong/base/check.h"
#include "everlong/base/crc32c.h"

namespace everlong::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr off_t kSmall = off_t{1} << 22;

std::string Bytes(const fs::path& file, size_t most) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes(most, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(most));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

std::string Described(const fs::path& path, const struct stat& status) {
  std::string line = std::to_string(status.st_mode) + " inode " + std::to_string(status.st_ino);
  if (S_ISLNK(status.st_mode)) return line + " to " + fs::read_symlink(path).string();
  if (!S_ISREG(status.st_mode)) return line;
  const std::string bytes = Bytes(path, static_cast<size_t>(std::min(status.st_size, kSmall)));
  line += " of " + std::to_string(status.st_size) + " bytes, crc " +
          std::to_string(Crc32c(std::as_bytes(std::span(bytes))));
  return line + " changed " + std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec);
}

}  // namespace

Files ReadFiles(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(folder)] = Bytes(entry.path(), entry.file_size());
  }
  return files;
}

void WriteFiles(const fs::path& folder, const Files& files) {
  fs::create_directories(folder);
  for (const auto& [name, bytes] : files) {
    const fs::path file = folder / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }
}

std::optional<std::string> OwnBytes(const fs::path& file) {
  struct stat status = {};
  const bool own = ::lstat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1 &&
                   status.st_size <= kSmall;
  if (!own) return std::nullopt;
  return Bytes(file, static_cast<size_t>(status.st_size));
}

void PutBytes(const fs::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), std::ssize(bytes));
}

Look LookAt(const fs::path& folder, bool without_log) {
  Look look;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    struct stat status = {};
    if (::lstat(entry.path().c_str(), &status) != 0) continue;
    const std::string name = entry.path().lexically_relative(folder);
    if (without_log && (name.ends_with("-shm") || (name.ends_with("-wal") && status.st_size == 0))) continue;
    look[name] = Described(entry.path(), status);
  }
  return look;
}

void RequireSame(const Look& before, const Look& after, const char* where) {
  if (before == after) return;
  for (const auto& [name, what] : before) {
    const auto found = after.find(name);
    if (found == after.end()) std::fprintf(stderr, "%s: gone: %s: %s\n", where, name.c_str(), what.c_str());
    if (found != after.end() && found->second != what) {
      std::fprintf(stderr, "%s: %s was %s\n  and is %s\n", where, name.c_str(), what.c_str(), found->second.c_str());
    }
  }
  for (const auto& [name, what] : after) {
    if (!before.contains(name)) std::fprintf(stderr, "%s: new: %s: %s\n", where, name.c_str(), what.c_str());
  }
  std::abort();
}

const fs::path& Scratch() {
  class Folder {
   public:
    Folder() {
      const fs::path in_ram = "/dev/shm";
      path_ = (::access(in_ram.c_str(), W_OK) == 0 ? in_ram : fs::temp_directory_path()) /
              ("everlong-folder-fuzzer-" + std::to_string(::getpid()));
      EVERLONG_CHECK(fs::create_directory(path_));
    }
    ~Folder() {
      std::error_code ignored;
      fs::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    fs::path path_;
  };
  static const Folder folder;
  return folder.path_;
}

}  // namespace everlong::fuzz
