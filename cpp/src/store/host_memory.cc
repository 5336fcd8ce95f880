#include "host_memory.h"

#include <fstream>
#include <limits>
#include <string>

namespace everlong::store {

int64_t FreeMemoryBytes() {
  constexpr int64_t kKibibyte = 1024;
  std::ifstream file("/proc/meminfo");
  std::string name;
  while (file >> name) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) return kibibytes * kKibibyte;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace everlong::store
