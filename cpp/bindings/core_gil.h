// Work without Python's lock.
#pragma once

#include <pybind11/pybind11.h>

namespace everlong::bindings {

// Runs `work`, which touches no Python object, without the GIL. What it returns, a Status or Result too, is looked at
// with it.
template <class Work>
auto Unlocked(const Work& work) {
  const pybind11::gil_scoped_release release;
  return work();
}

}  // namespace everlong::bindings
