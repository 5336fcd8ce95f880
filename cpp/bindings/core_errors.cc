#include "core_errors.h"

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

py::str TextOf(std::string_view bytes) {
  PyObject* const text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

void RaiseNamed(const char* name, const std::string& message) {
  const py::object type = py::module_::import("everlong.errors").attr(name);
  PyErr_SetObject(type.ptr(), TextOf(message).ptr());
  throw py::error_already_set();
}

void Raise(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument) {
    PyErr_SetObject(PyExc_ValueError, TextOf(status.message()).ptr());
    throw py::error_already_set();
  }
  RaiseNamed(ErrorClass(status.code()), status.message());
}

}  // namespace everlong::bindings
