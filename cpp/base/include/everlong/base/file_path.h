// Where a file lies: a path of the user's, or a name beneath a folder that was opened once.
//
// A folder comes from anybody, so what lies in it is input. Beneath an opened folder no symbolic link is followed, no
// other file system is entered, and nothing but regular files and folders is opened, whatever others put there
// meanwhile. A path of the user's own may lead through links, as everywhere else.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "everlong/base/status.h"

namespace everlong {

// An open file or folder, closed with its owner.
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

// A value, cheap to copy. The folder's descriptor is open as long as one of its paths lives. Const calls are
// thread-safe.
class FilePath {
 public:
  FilePath() = default;
  // A path of the user's. Implicit, for every call that takes a file takes such a path.
  FilePath(std::filesystem::path path) : path_(std::move(path)) {}
  FilePath(const char* path) : path_(path) {}
  FilePath(const std::string& path) : path_(path) {}

  // `folder` itself, opened now: what `/` makes of it lies beneath. kNotFound without such a folder, kIoError.
  static Result<FilePath> Open(const std::filesystem::path& folder);

  // A file or folder in this one. `name` has no "..".
  [[nodiscard]] FilePath operator/(std::string_view name) const;
  // Another name in the same folder: this one and `suffix`.
  [[nodiscard]] FilePath operator+(std::string_view suffix) const;
  [[nodiscard]] FilePath parent() const;

  // For messages, and for calls that never open anything.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string string() const { return path_.string(); }
  [[nodiscard]] std::string filename() const { return path_.filename().string(); }

  // For system calls: the descriptor of the opened folder, AT_FDCWD for a path of the user's; and the name beneath it.
  [[nodiscard]] int folder() const;
  [[nodiscard]] std::string name() const;
  [[nodiscard]] bool beneath() const { return folder_ != nullptr; }
  // Whether the user's path of the opened folder still leads to it: it was neither moved nor replaced.
  [[nodiscard]] bool IsStillThere() const;
  // A path of this file for a library that opens by path, through /proc/self/fd where the system has it: the folder
  // cannot be replaced under it. Valid as long as one of the folder's paths lives.
  [[nodiscard]] std::string SystemPath() const;

  bool operator==(const FilePath& other) const { return path_ == other.path_; }

 private:
  std::shared_ptr<const UniqueFd> folder_;
  std::filesystem::path root_;  // the user's path of the opened folder
  std::filesystem::path path_;  // the whole
};

}  // namespace everlong
