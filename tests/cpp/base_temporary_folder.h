// A place for a test's files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace everlong {

// A new folder of a name that no other test has, removed with all it holds when this goes.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent = testing::TempDir()) {
    std::string pattern = (parent / "everlong-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    EXPECT_FALSE(error) << error.message();
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Return a folder in RAM, where the system has one. A process that dies there leaves what it would on a disk, sooner.
inline std::filesystem::path FolderInRam() {
  const std::filesystem::path shared = "/dev/shm";
  return std::filesystem::is_directory(shared) ? shared : std::filesystem::path(testing::TempDir());
}

}  // namespace everlong
