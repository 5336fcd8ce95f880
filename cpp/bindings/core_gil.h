// Work without Python's lock.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace everlong::bindings {

// No GIL while it lives. A thread that wants it back when the interpreter has ended sleeps until the process ends.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      // Python before 3.14 ends such a thread by pthread_exit. That unwinds the stack, and the first destructor that it
      // meets would abort the process.
      while (true) ::pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Run `work`, which touches no Python object, without the GIL. Return its result, with the GIL.
template <class Work>
auto Unlocked(const Work& work) {
  const WithoutGil without;
  return work();
}

}  // namespace everlong::bindings
