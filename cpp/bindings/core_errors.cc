#include "core_errors.h"

#include <pybind11/pybind11.h>

#include "everlong/base/check.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;

const char* ErrorClass(StatusCode code) {
  switch (code) {
    case StatusCode::kNotFound:
      return "MemoryNotFoundError";
    case StatusCode::kAlreadyExists:
      return "MemoryExistsError";
    case StatusCode::kCorrupt:
      return "CorruptMemoryError";
    case StatusCode::kIoError:
      return "MemoryIOError";
    case StatusCode::kModelMismatch:
      return "ModelMismatchError";
    case StatusCode::kBusy:
      return "MemoryBusyError";
    case StatusCode::kCapacity:
      return "CapacityError";
    case StatusCode::kReadOnly:
      return "ReadOnlyMemoryError";
    case StatusCode::kNewerFormat:
      return "NewerFormatError";
    case StatusCode::kOk:
    case StatusCode::kInvalidArgument:
      break;
  }
  EVERLONG_CHECK(false);
}

}  // namespace

void RaiseNamed(const char* name, const std::string& message) {
  const py::object type = py::module_::import("everlong.errors").attr(name);
  py::set_error(type, message.c_str());
  throw py::error_already_set();
}

void Raise(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument) throw py::value_error(status.message());
  RaiseNamed(ErrorClass(status.code()), status.message());
}

}  // namespace everlong::bindings
