// For tests that take the place of the C library's calls: paths of files as the core and SQLite open them.
#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <optional>
#include <string>
#include <string_view>

namespace everlong {

inline std::string PathOfDescriptor(int fd) {
  std::array<char, 4096> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return length > 0 ? std::string(path.data(), static_cast<size_t>(length)) : std::string();
}

// The path of a name beneath an opened folder, AT_FDCWD for none.
inline std::string PathBeneath(int folder, const char* name) {
  return folder == AT_FDCWD || name[0] == '/' ? std::string(name) : PathOfDescriptor(folder) + "/" + name;
}

// A path through /proc/self/fd, by which SQLite opens a catalog, as that of the file.
inline std::string ResolvedPath(const char* path) {
  constexpr std::string_view kOpened = "/proc/self/fd/";
  const std::string_view whole = path;
  const size_t slash = whole.find('/', kOpened.size());
  if (!whole.starts_with(kOpened) || slash == std::string_view::npos) return path;
  const std::string number(whole.substr(kOpened.size(), slash - kOpened.size()));
  return PathOfDescriptor(std::stoi(number)) + std::string(whole.substr(slash));
}

// A call of openat2, by which the core opens every file of a memory. It is made where memory may be short: only path()
// takes some.
struct OpenedBeneath {
  int folder = AT_FDCWD;
  const char* name = nullptr;
  uint64_t flags = 0;
  [[nodiscard]] std::string path() const { return PathBeneath(folder, name); }
};

inline std::optional<OpenedBeneath> AsOpen(long number, const std::array<long, 6>& arguments) {
  if (number != SYS_openat2) return std::nullopt;
  return OpenedBeneath{static_cast<int>(arguments[0]), reinterpret_cast<const char*>(arguments[1]),
                       reinterpret_cast<const open_how*>(arguments[2])->flags};
}

}  // namespace everlong

// The body of a `syscall` that takes the place of the C library's: `asks`, a callable of an OpenedBeneath, returns
// whether the call is refused, with errno set. It reads six arguments whatever the caller passed, as the C library's
// does, which AddressSanitizer would call a read beyond the caller's frame. A static with a guard may not stand in it:
// the guard's own waiting is a `syscall`.
#define EVERLONG_SYSCALL_ASKING(asks)                                                                        \
  extern "C" __attribute__((no_sanitize("address"))) long syscall(long number, ...) noexcept {               \
    std::array<long, 6> arguments = {};                                                                      \
    va_list list;                                                                                            \
    va_start(list, number);                                                                                  \
    for (long& argument : arguments) argument = va_arg(list, long);                                          \
    va_end(list);                                                                                            \
    if (const auto opened = ::everlong::AsOpen(number, arguments); opened && asks(*opened)) return -1;       \
    using Call = long(long, ...);                                                                            \
    static std::atomic<Call*> known = nullptr;                                                               \
    Call* next = known.load();                                                                               \
    if (next == nullptr) known = next = reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, "syscall"));              \
    return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]); \
  }
