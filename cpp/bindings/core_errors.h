// Status values as the exceptions of everlong.errors. Everything here needs the GIL.
#pragma once

#include <string>
#include <utility>

#include "everlong/base/status.h"

namespace everlong::bindings {

// Raises the class `name` of everlong.errors.
[[noreturn]] void RaiseNamed(const char* name, const std::string& message);
// Raises what stands for status.code(); the status is not ok.
[[noreturn]] void Raise(const Status& status);

inline void RaiseIfError(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T ValueOrRaise(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

}  // namespace everlong::bindings
