// Work without Python's lock.
#pragma once

#include <pybind11/pybind11.h>

namespace everlong::bindings {

// Run `work`, which touches no Python object, without the GIL. Return its result, with the GIL.
template <class Work>
auto Unlocked(const Work& work) {
  const pybind11::gil_scoped_release release;
  return work();
}

}  // namespace everlong::bindings
