#include "everlong/base/file_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "everlong/base/check.h"
#include "everlong/base/file.h"

namespace everlong {

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<FilePath> FilePath::Open(const std::filesystem::path& folder) {
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd opened, OpenFile(FilePath(folder), O_RDONLY | O_DIRECTORY));
  FilePath file(folder.has_filename() ? folder : folder.parent_path());  // "a/" is "a"
  file.root_ = file.path_;
  file.folder_ = std::make_shared<const UniqueFd>(std::move(opened));
  return file;
}

FilePath FilePath::operator/(std::string_view name) const {
  FilePath file = *this;
  file.path_ /= name;
  return file;
}

FilePath FilePath::operator+(std::string_view suffix) const {
  FilePath file = *this;
  file.path_ += suffix;
  return file;
}

FilePath FilePath::parent() const {
  EVERLONG_CHECK(!beneath() || path_ != root_);
  FilePath file = *this;
  file.path_ = path_.parent_path();
  return file;
}

int FilePath::folder() const { return beneath() ? folder_->get() : AT_FDCWD; }

std::string FilePath::name() const {
  if (!beneath()) return path_.empty() ? "." : path_.string();
  if (path_ == root_) return ".";
  // "a/" / "b" is "a/b", as "a" / "b" is.
  const std::string root = (root_ / "").string();
  const std::string whole = path_.string();
  EVERLONG_CHECK(whole.starts_with(root));
  return whole.substr(root.size());
}

bool FilePath::IsStillThere() const {
  struct stat opened = {};
  struct stat named = {};
  return beneath() && ::fstat(folder_->get(), &opened) == 0 && ::stat(root_.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::string FilePath::SystemPath() const {
  if (!beneath()) return string();
  const std::string folder = "/proc/self/fd/" + std::to_string(folder_->get());
  struct stat status = {};
  if (::stat(folder.c_str(), &status) != 0) return string();
  return folder + "/" + name();
}

}  // namespace everlong
