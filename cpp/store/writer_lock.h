// The right to write to a memory: an flock on its LOCK file. The system drops it when its process dies in any way, so
// nobody has to break a dead owner's lock. The file names the owner (pid, host) for the message to a second writer. A
// fork of the process has none of its locks.
#pragma once

#include <filesystem>
#include <memory>

#include "everlong/base/file.h"
#include "everlong/base/status.h"

namespace everlong::store {

inline constexpr const char* kLockFile = "LOCK";

class WriterLock {
 public:
  WriterLock(WriterLock&&) noexcept;
  WriterLock& operator=(WriterLock&&) noexcept;
  ~WriterLock();

  // Take the lock without waiting. kBusy names the owner.
  static Result<WriterLock> Acquire(const FilePath& folder);
  // Return whether the folder still has the file that was locked. If not, it was removed, or is another memory by now.
  [[nodiscard]] bool IsStillIn(const FilePath& folder) const;
  // Return whether `folder` holds a file of that name which no writer of a memory wrote.
  static bool IsForeign(const FilePath& folder);

 private:
  class Held;
  explicit WriterLock(std::unique_ptr<Held> held);
  std::unique_ptr<Held> held_;
};

}  // namespace everlong::store
