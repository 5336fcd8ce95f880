// EVERLONG_CHECK for broken invariants: it prints the place and aborts. Never use it for errors of users or disks.
#pragma once

namespace everlong {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);

}  // namespace everlong

#define EVERLONG_CHECK(condition)                                              \
  do {                                                                         \
    if (!(condition)) ::everlong::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
