#include "everlong/base/control_groups.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/file.h"

namespace everlong {
namespace {

// A hierarchy of groups.
struct Version {
  std::string_view file_system;  // in /proc/self/mountinfo
  std::string_view controller;   // in /proc/self/cgroup and among the mount's options
};

// One that limits RAM, with the names of its files.
struct OfRam : Version {
  const char* limit;
  const char* usage;
  std::string_view idle_cache;  // in memory.stat
};
constexpr std::array kOfRam = {
    OfRam{{"cgroup2", ""}, "memory.max", "memory.current", "inactive_file"},
    OfRam{{"cgroup", "memory"}, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
};

// One that limits CPU time. Its files have microseconds: a quota, none or below 0 without a limit, and its period.
struct OfCpu : Version {
  const char* quota;
  const char* period;  // nullptr: it stands behind the quota
};
constexpr std::array kOfCpu = {
    OfCpu{{"cgroup2", ""}, "cpu.max", nullptr},
    OfCpu{{"cgroup", "cpu"}, "cpu.cfs_quota_us", "cpu.cfs_period_us"},
};

struct Mount {
  std::string root;   // the group that is seen at `point`
  std::string point;  // absolute
};

bool ListHas(const std::string& list, std::string_view name) {
  std::istringstream names(list);
  for (std::string each; std::getline(names, each, ',');) {
    if (each == name) return true;
  }
  return false;
}

// A line is "id:controllers:path". Version 2 has no controllers.
std::optional<std::string> GroupOfThisProcess(const std::filesystem::path& root, const Version& version) {
  std::istringstream file = SystemText(root / "proc/self/cgroup");
  for (std::string id, controllers, path;
       std::getline(file, id, ':') && std::getline(file, controllers, ':') && std::getline(file, path);) {
    if (version.controller.empty() ? controllers.empty() : ListHas(controllers, version.controller)) return path;
  }
  return std::nullopt;
}

// A line is "id parent device root point options [more ...] - file_system source options".
std::optional<Mount> MountOf(const std::filesystem::path& root, const Version& version) {
  std::istringstream file = SystemText(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream behind(line.substr(dash + 3));
    std::string skipped;
    std::string file_system;
    std::string options;
    Mount mount;
    before >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    behind >> file_system >> skipped >> options;
    if (file_system != version.file_system) continue;
    if (version.controller.empty() || ListHas(options, version.controller)) return mount;
  }
  return std::nullopt;
}

// Return where the group lies below the mount's point; the point itself when the group is outside of it.
std::filesystem::path Below(const Mount& mount, const std::string& group) {
  const std::filesystem::path below = std::filesystem::path(group).lexically_relative(mount.root);
  return below.empty() || *below.begin() == ".." || *below.begin() == "." ? std::filesystem::path() : below;
}

std::optional<int64_t> ReadNumber(const std::filesystem::path& path) {
  int64_t number = 0;
  if (SystemText(path) >> number) return number;
  return std::nullopt;  // "max" is no number
}

std::optional<int64_t> ReadStatistic(const std::filesystem::path& path, std::string_view name) {
  std::istringstream file = SystemText(path);
  int64_t value = 0;
  for (std::string each; file >> each >> value;) {
    if (each == name) return value;
  }
  return std::nullopt;
}

std::optional<int64_t> LimitIn(const std::filesystem::path& group, const OfRam& version) {
  const std::optional<int64_t> limit = ReadNumber(group / version.limit);
  const std::optional<int64_t> usage = ReadNumber(group / version.usage);
  if (!limit || !usage) return std::nullopt;
  const int64_t idle = ReadStatistic(group / "memory.stat", version.idle_cache).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - idle));
}

std::optional<int64_t> LimitIn(const std::filesystem::path& group, const OfCpu& version) {
  std::istringstream file = SystemText(group / version.quota);
  int64_t quota = 0;
  int64_t period = 0;
  if (!(file >> quota) || quota <= 0) return std::nullopt;
  if (version.period == nullptr) {
    file >> period;
  } else {
    period = ReadNumber(group / version.period).value_or(0);
  }
  if (period <= 0) return std::nullopt;
  return (quota - 1) / period + 1;
}

// Return the least limit of the process' groups and those around them, which they may not pass either.
template <class Versions>
std::optional<int64_t> LeastLimit(const std::filesystem::path& root, const Versions& versions) {
  std::optional<int64_t> least;
  for (const auto& version : versions) {
    const std::optional<std::string> group = GroupOfThisProcess(root, version);
    const std::optional<Mount> mount = MountOf(root, version);
    if (!group || !mount) continue;
    std::filesystem::path below = Below(*mount, *group);
    while (true) {
      const std::filesystem::path point = root / std::filesystem::path(mount->point).relative_path();
      if (const std::optional<int64_t> limit = LimitIn(point / below, version))
        least = std::min(*limit, least.value_or(*limit));
      if (below.empty()) break;
      below = below.parent_path();
    }
  }
  return least;
}

}  // namespace

std::istringstream SystemText(const std::filesystem::path& path) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const Result<std::vector<std::byte>> bytes = ReadWhole(path, kMostBytes);
  if (!bytes.ok()) return {};
  return std::istringstream(std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
}

std::optional<int64_t> GroupRamBytes(const std::filesystem::path& root) { return LeastLimit(root, kOfRam); }

std::optional<int64_t> GroupCpus(const std::filesystem::path& root) { return LeastLimit(root, kOfCpu); }

}  // namespace everlong
