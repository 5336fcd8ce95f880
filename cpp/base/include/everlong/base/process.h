// Keep a forked process from destroying its parent's objects: the fork has them without their threads.
#pragma once

#include <unistd.h>

#include <memory>

namespace everlong {

// Remember the process that made this object. Thread-safe.
class OwnProcess {
 public:
  [[nodiscard]] bool IsThis() const { return ::getpid() == pid_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = ::getpid();
};

// Return a shared pointer that destroys its object only in the process that made it. A fork leaks the object instead:
// there, its destructor would wait for threads that the fork does not have.
template <class T>
std::shared_ptr<T> OwnedByThisProcess(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [process = OwnProcess()](T* owned) {
    if (process.IsThis()) std::default_delete<T>()(owned);
  });
}

}  // namespace everlong
