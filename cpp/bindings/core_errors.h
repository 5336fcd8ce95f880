// Raise Status values as the exceptions of everlong.errors. Everything here needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "everlong/base/status.h"

namespace everlong::bindings {

// Return bytes as a text. What is no UTF-8, as in a path, shows as \xff.
pybind11::str TextOf(std::string_view bytes);

// Raise the class `name` of everlong.errors.
[[noreturn]] void RaiseNamed(const char* name, const std::string& message);
// Raise the class for status.code(). The status is not ok.
[[noreturn]] void Raise(const Status& status);

// Return the error for a device that is named in a build without a GPU.
inline Status NoGpuError(int32_t device) {
  return InvalidArgumentError("device is " + std::to_string(device) +
                              "; expected None: everlong was built without a GPU (EVERLONG_CUDA, EVERLONG_HIP)");
}

inline void RaiseIfError(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T ValueOrRaise(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// Return a result, or raise its error.
template <class T>
T OrRaise(T value) {
  return value;
}
template <class T>
T OrRaise(Result<T> result) {
  return ValueOrRaise(std::move(result));
}
inline void OrRaise(const Status& status) { RaiseIfError(status); }

}  // namespace everlong::bindings
