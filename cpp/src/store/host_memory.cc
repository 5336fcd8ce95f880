#include "everlong/store/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "control_groups.h"

namespace everlong::store {
namespace {

int64_t AvailableBytes(const std::filesystem::path& root) {
  constexpr int64_t kKibibyte = 1024;
  std::ifstream file(root / "proc/meminfo");
  std::string name;
  while (file >> name) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) return kibibytes * kKibibyte;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace

int64_t FreeMemoryBytes(const std::filesystem::path& root) {
  const int64_t available = AvailableBytes(root);
  return std::min(available, GroupMemoryBytes(root).value_or(available));
}

}  // namespace everlong::store
