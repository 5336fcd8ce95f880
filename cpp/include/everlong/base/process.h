// What a fork of a process may do with its parent's objects: nothing, for it has them without their threads.
#pragma once

#include <unistd.h>

#include <memory>

namespace everlong {

// The process that an object belongs to: the one that makes this. Thread-safe.
class OwnProcess {
 public:
  [[nodiscard]] bool IsThis() const { return ::getpid() == pid_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = ::getpid();
};

// Destroys what it owns in the process that made it alone. In a fork the object lies where it is: its destructor would
// wait there for threads that are not in the fork.
template <class T>
std::shared_ptr<T> OwnedByThisProcess(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [process = OwnProcess()](T* owned) {
    if (process.IsThis()) std::default_delete<T>()(owned);
  });
}

}  // namespace everlong
