// Work without Python's lock.
#pragma once

#include <pybind11/pybind11.h>

namespace everlong::bindings {

// Run `work`, which touches no Python object, without the GIL. Its result, a Status or Result too, is returned with the
// GIL.
template <class Work>
auto Unlocked(const Work& work) {
  const pybind11::gil_scoped_release release;
  return work();
}

}  // namespace everlong::bindings
