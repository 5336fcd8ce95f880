// Linux control groups: how much RAM and how many CPUs a container, a batch system or systemd lets this process have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <sstream>

namespace everlong {

// Return how many bytes more the process' groups let it take, of either version, with the groups around them. None
// without a limit. Page cache that the system would give up first counts as free. proc/ and sys/ are in `root`.
std::optional<int64_t> GroupRamBytes(const std::filesystem::path& root);

// Return the CPUs whose time the groups let it have, rounded up, at least 1. None without a limit.
std::optional<int64_t> GroupCpus(const std::filesystem::path& root);

// Return the text of a file of the system's; none where it cannot be read.
std::istringstream SystemText(const std::filesystem::path& path);

}  // namespace everlong
