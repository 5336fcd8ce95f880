// How much RAM there is, as files of the system's say that a test has written.
#include <unistd.h>

#include <optional>

#include "everlong/base/control_groups.h"
#include "everlong/store/free_ram.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class StoreFreeRam : public StoreFolderTest {
 protected:
  void SetUp() override { Write("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 7 kB\nMemAvailable: 1048576 kB\n"); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    WriteFile(root_ / path, text);
  }
  // A group of version 2.
  void Group(const std::string& folder, const std::string& limit, int64_t current, int64_t inactive_file) const {
    Write(folder + "/memory.max", limit + "\n");
    Write(folder + "/memory.current", std::to_string(current) + "\n");
    Write(folder + "/memory.stat",
          "anon 5\nfile 6\ninactive_file " + std::to_string(inactive_file) + "\nactive_file 8\n");
  }
  // The machine as a plain system mounts it, with this process in `group`.
  void Unified(const std::string& group, const std::string& mount_root = "/") const {
    Write("proc/self/cgroup", "1:name=systemd:/x\n0::" + group + "\n");
    Write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 23 0:26 " + mount_root +
                                     " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
};

TEST_F(StoreFreeRam, WithoutGroupsItIsWhatTheSystemHas) {
  EXPECT_EQ(GroupRamBytes(root_), std::nullopt);
  EXPECT_EQ(FreeRamBytes(root_), 1024 * kMiB);
  EXPECT_GT(FreeRamBytes(), 0);
}

TEST_F(StoreFreeRam, TheTightestGroupAroundTheProcessCounts) {
  Unified("/jobs/one/shell");
  Group("sys/fs/cgroup/jobs/one/shell", "max", 10 * kMiB, 0);
  EXPECT_EQ(GroupRamBytes(root_), std::nullopt);
  EXPECT_EQ(FreeRamBytes(root_), 1024 * kMiB);
  Group("sys/fs/cgroup/jobs/one", std::to_string(500 * kMiB), 120 * kMiB, 20 * kMiB);
  EXPECT_EQ(FreeRamBytes(root_), 400 * kMiB) << "cache that nobody uses is free";
  Group("sys/fs/cgroup/jobs", std::to_string(300 * kMiB), 250 * kMiB, 0);
  EXPECT_EQ(FreeRamBytes(root_), 50 * kMiB);
  Group("sys/fs/cgroup/jobs/one/shell", std::to_string(100 * kMiB), 99 * kMiB, 0);
  EXPECT_EQ(FreeRamBytes(root_), kMiB);
  Group("sys/fs/cgroup/jobs/one/shell", std::to_string(100 * kMiB), 130 * kMiB, 0);
  EXPECT_EQ(FreeRamBytes(root_), 0) << "a limit that was lowered";
  Group("sys/fs/cgroup/jobs/two", "0", 0, 0);
  Group("sys/fs/cgroup/jobs/one/shell", std::to_string(9999 * kMiB), 0, 0);
  Group("sys/fs/cgroup/jobs", "max", 0, 0);
  Group("sys/fs/cgroup/jobs/one", "max", 0, 0);
  EXPECT_EQ(FreeRamBytes(root_), 1024 * kMiB) << "a limit above what the machine has";
}

TEST_F(StoreFreeRam, CpuTimeIsThatOfTheTightestGroupToo) {
  EXPECT_EQ(GroupCpus(root_), std::nullopt);
  Unified("/jobs/one");
  Write("sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
  EXPECT_EQ(GroupCpus(root_), std::nullopt);
  Write("sys/fs/cgroup/jobs/cpu.max", "800000 100000\n");
  EXPECT_EQ(GroupCpus(root_), 8);
  Write("sys/fs/cgroup/jobs/one/cpu.max", "150000 100000\n");
  EXPECT_EQ(GroupCpus(root_), 2) << "rounded up";
  Write("sys/fs/cgroup/jobs/one/cpu.max", "1000 100000\n");
  EXPECT_EQ(GroupCpus(root_), 1);
  for (const char* const damaged : {"", "1000", "-1 100000", "0 100000", "1000 0", "1000 -5", "what 100000"}) {
    Write("sys/fs/cgroup/jobs/one/cpu.max", damaged);
    EXPECT_EQ(GroupCpus(root_), 8) << damaged;
  }
}

TEST_F(StoreFreeRam, CpuTimeOfTheFirstVersionHasTwoFiles) {
  Write("proc/self/cgroup", "4:memory:/m\n5:cpu,cpuacct:/docker/x\n");
  Write("proc/self/mountinfo", "30 23 0:26 /docker/x /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(GroupCpus(root_), std::nullopt);
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(GroupCpus(root_), 3);
}

TEST_F(StoreFreeRam, WhereTheSystemDoesNotSayWhatIsFreeItIsHalfOfTheMachineOrWhatTheGroupLeaves) {
  const int64_t half = FreeRamBytes(root_ / "nothing");
  EXPECT_GT(half, 0);
  EXPECT_LT(half, ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE));
  Unified("/job");
  Group("sys/fs/cgroup/job", std::to_string(kMiB), 0, 0);
  Write("proc/meminfo", "MemTotal: 4194304 kB\n");
  EXPECT_EQ(FreeRamBytes(root_), kMiB);
}

TEST_F(StoreFreeRam, InAContainerTheMountsTopIsItsOwnGroup) {
  Group("sys/fs/cgroup", std::to_string(200 * kMiB), 50 * kMiB, 0);
  for (const char* group : {"/", "/../../elsewhere"}) {
    Unified(group);
    EXPECT_EQ(FreeRamBytes(root_), 150 * kMiB) << group;
  }
  Unified("/docker/abc", "/docker/abc");
  EXPECT_EQ(FreeRamBytes(root_), 150 * kMiB);
  Unified("/docker/abc/inner", "/docker/abc");
  Group("sys/fs/cgroup/inner", std::to_string(60 * kMiB), 0, 0);
  EXPECT_EQ(FreeRamBytes(root_), 60 * kMiB);
  Unified("/docker/abcd", "/docker/abc");
  EXPECT_EQ(FreeRamBytes(root_), 150 * kMiB);
}

TEST_F(StoreFreeRam, OfVersionOneTheMemoryController) {
  Write("proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/tight\n4:memory:/job\n0::/\n");
  Write("proc/self/mountinfo",
        "33 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  const std::string memory = "sys/fs/cgroup/memory/";
  Write(memory + "memory.limit_in_bytes", "9223372036854771712\n");  // none
  Write(memory + "memory.usage_in_bytes", "123\n");
  EXPECT_EQ(FreeRamBytes(root_), 1024 * kMiB);
  Write(memory + "job/memory.limit_in_bytes", std::to_string(80 * kMiB) + "\n");
  Write(memory + "job/memory.usage_in_bytes", std::to_string(50 * kMiB) + "\n");
  Write(memory + "job/memory.stat",
        "cache 1\ninactive_file 1\ntotal_inactive_file " + std::to_string(10 * kMiB) + "\n");
  EXPECT_EQ(FreeRamBytes(root_), 40 * kMiB);
}

TEST_F(StoreFreeRam, WhatCannotBeReadLimitsNothing) {
  Write("proc/self/cgroup", "nonsense\n0::\n\n::::");
  Write("proc/self/mountinfo", "- cgroup2\n\n1 2 - cgroup2\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2\n");
  Write("sys/fs/cgroup/memory.max", "12");
  Write("sys/fs/cgroup/memory.current", "many");
  EXPECT_EQ(FreeRamBytes(root_), 1024 * kMiB);
}

}  // namespace
}  // namespace everlong::store
