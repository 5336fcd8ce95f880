// An object with locks or threads of its own, as Python holds it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core_errors.h"
#include "core_gil.h"
#include "everlong/base/process.h"

namespace everlong::bindings {

// The object is thread-safe, and calls of it run without the GIL. It belongs to the process that made it: a fork has it
// without its threads, and perhaps locked by one of them. There each use raises ClosedError, and its end leaks it.
template <class T>
class Held {
 public:
  // `what` names it in errors: "the memory".
  Held(std::shared_ptr<T> object, const char* what) : object_(std::move(object)), what_(what) {}
  ~Held() { Close(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Run work(object) without the GIL. A Close() meanwhile leaves the object to it. ClosedError as of Share.
  template <class Work>
  auto Call(const Work& work) const {
    std::shared_ptr<T> object = Share();
    return Unlocked([&] {
      const std::shared_ptr<T> held = std::move(object);  // this call may be the last owner, and it has no GIL
      return work(*held);
    });
  }
  // Return the object. ClosedError after Close, and in a fork of the process.
  [[nodiscard]] std::shared_ptr<T> Share() const {
    if (object_ == nullptr) RaiseNamed("ClosedError", std::string(what_) + " is closed");
    if (!process_.IsThis()) {
      RaiseNamed("ClosedError", std::string(what_) + " was made or opened by process " +
                                    std::to_string(process_.pid()) + ", of which this one is a fork: do it here");
    }
    return object_;
  }
  // Let the object go. Its last owner destroys it, without the GIL.
  void Close() {
    std::shared_ptr<T> closing = std::exchange(object_, nullptr);
    if (closing == nullptr) return;
    if (process_.IsThis()) {
      Unlocked([&closing] { closing.reset(); });
    } else {
      static_cast<void>(new std::shared_ptr<T>(std::move(closing)));  // leaked
    }
  }

 private:
  std::shared_ptr<T> object_;  // the GIL guards it
  const char* const what_;
  const OwnProcess process_;
};

}  // namespace everlong::bindings
