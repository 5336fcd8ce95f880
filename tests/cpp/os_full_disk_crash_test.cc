// A writer that dies at any of its calls while it makes room on a full disk: what stays is whole, and what was
// acknowledged as forgotten stays forgotten.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "os_killed_at_call.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

constexpr int64_t kBlocks = 40;
constexpr int64_t kStays = 10;  // blocks from the first one on

// A file system of 4 MiB in a folder.
class SmallDisk {
 public:
  explicit SmallDisk(const std::filesystem::path& folder) : folder_(folder) {
    std::filesystem::create_directory(folder);
    mounted_ = ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=4m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount(folder_.c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] std::filesystem::path Ballast() const { return folder_ / "ballast"; }
  // Leave no byte free.
  void FillUp() const {
    const int file = ::open(Ballast().c_str(), O_CREAT | O_WRONLY, 0600);
    const std::array<char, 4096> page = {1};
    while (::write(file, page.data(), page.size()) > 0) {
    }
    ::close(file);
  }

 private:
  std::filesystem::path folder_;
  bool mounted_ = false;
};

std::vector<int64_t> Going() {
  std::vector<int64_t> ids;
  for (int64_t id = kStays + 1; id <= kBlocks; ++id) ids.push_back(id);
  return ids;
}

// Tells which step it has behind it.
void MakeRoom(const std::filesystem::path& folder, const SmallDisk& disk, long at, const Tell& tell) {
  const auto memory = Memory::Open(folder, false).value();
  disk.FillUp();
  KillAfterCalls(at);
  int64_t freed = 0;
  if (!memory->blocks().Forget(Going(), &freed).ok()) ::_exit(5);
  tell('f');
  if (freed == 0) ::_exit(6);
  if (!memory->upkeep().Compact().ok()) ::_exit(4);
  tell('c');
  ::_exit(0);
}

TEST(OsFullDiskCrash, WhatStaysIsWholeWhereverItDies) {
  const TemporaryFolder root;
  const SmallDisk disk(root.path() / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "only root can mount a small file system";
  const std::filesystem::path folder = root.path() / "disk" / "memory";
  const std::filesystem::path before = root.path() / "before";
  {
    const Filled filled = Fill(Memory::Create(before, TestManifest()).value(), 71, kBlocks);
  }
  bool died = true;
  long at = 0;
  for (; died && !testing::Test::HasFailure(); ++at) {
    SCOPED_TRACE("dies before call " + std::to_string(at));
    std::filesystem::remove_all(folder);
    std::filesystem::copy(before, folder, std::filesystem::copy_options::recursive);
    const auto [told, has_died] = RunInChild([&](const Tell& tell) { MakeRoom(folder, disk, at, tell); });
    died = has_died;
    ASSERT_FALSE(HasFailure());

    // It may be opened on the full disk, too.
    if (at % 2 == 0) std::filesystem::remove(disk.Ballast());
    const auto memory = Memory::Open(folder, false).value();
    std::filesystem::remove(disk.Ballast());
    const store::VerifyReport report = memory->upkeep().Verify(false).value();
    EXPECT_TRUE(report.damage.empty()) << report.damage[0].what;
    std::vector<int64_t> left;
    const std::vector<store::BlockInfo> infos = memory->blocks().Infos().value();
    for (const store::BlockInfo& info : infos) left.push_back(info.id);
    ASSERT_GE(std::ssize(left), kStays);
    for (int64_t id = 1; id <= kStays; ++id) EXPECT_EQ(left[static_cast<size_t>(id - 1)], id);
    if (told.contains('f')) {
      EXPECT_EQ(std::ssize(left), kStays);
    }
    left.erase(left.begin(), left.begin() + kStays);
    if (!left.empty()) {
      EXPECT_TRUE(memory->blocks().Forget(left).ok());
    }
    EXPECT_TRUE(memory->upkeep().Compact().ok());
    EXPECT_EQ(memory->upkeep().Stats().value().dead_bytes, 0);
    EXPECT_TRUE(std::filesystem::exists(folder / "reserve"));
  }
  EXPECT_GT(at, 20);  // it did more than begin
}

}  // namespace
}  // namespace everlong::os
