// A disk that fails. Every call by which the store or SQLite changes a file passes through store_failing_disk.cc, whose
// functions take the place of the C library's in this program. So does every call by which they open a file or read it.
#pragma once

#include <sys/types.h>

#include <semaphore>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace everlong::store {

enum class Fault {
  kNone,
  kFail,               // one call fails and changes nothing; the process goes on
  kTear,               // one write puts half of its bytes down and fails; the process goes on
  kDie,                // the process is gone before one call
  kTearAndDie,         // and after half of one write
  kPowerLoss,          // the process is gone before one call, and with it every write that no fsync has followed
  kFailThenPowerLoss,  // one call fails, the process goes on, and at its end the power goes
};

// A write that is not durable yet: what stood there before.
struct Undo {
  std::string path;
  off_t offset = 0;
  std::string bytes;
  off_t size = 0;
};

struct Disk {
  std::string folder;  // only files in it count
  Fault fault = Fault::kNone;
  long at = -1;  // which call
  long calls = 0;
  int refusal = 0;  // set: what counts is opening and reading, and one such call fails with this errno
  std::vector<Undo> undo;
  std::set<std::string> synced;  // every path that an fsync has made durable
  // Another thread's first call waits until `go` says so, after it has said that it is there.
  const std::thread::id main = std::this_thread::get_id();
  bool holds = false;
  std::binary_semaphore held{0};
  std::binary_semaphore go{0};
};
inline Disk* g_disk = nullptr;  // mostly in a child process alone

// The process ends, and every write that is not durable is undone.
[[noreturn]] void LosePower();

}  // namespace everlong::store
