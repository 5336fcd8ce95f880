#include "everlong/store/free_ram.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "everlong/base/control_groups.h"

namespace everlong::store {
namespace {

// Return what the system says is free; none where it does not say it, as where /proc is hidden.
std::optional<int64_t> AvailableBytes(const std::filesystem::path& root) {
  constexpr int64_t kKibibyte = 1024;
  std::istringstream file = SystemText(root / "proc/meminfo");
  std::string name;
  while (file >> name) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) return kibibytes * kKibibyte;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Return half of the machine's RAM.
int64_t HalfOfAllBytes() { return ::sysconf(_SC_PHYS_PAGES) / 2 * ::sysconf(_SC_PAGESIZE); }

}  // namespace

int64_t FreeRamBytes(const std::filesystem::path& root) {
  const std::optional<int64_t> available = AvailableBytes(root);
  const std::optional<int64_t> in_group = GroupRamBytes(root);
  const int64_t of_machine = available ? *available : HalfOfAllBytes();
  return std::min(of_machine, in_group.value_or(of_machine));
}

}  // namespace everlong::store
