// numpy arrays in and out, taken as they are: nothing is converted or copied without the caller knowing.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace everlong::bindings {

inline bool IsAnything(PyObject* /*object*/) { return true; }

// An argument that type checkers know as an array of T, or with void of any numbers. Any object arrives: View asks what
// it is, and names it where it is something else.
template <class T>
class ArrayOf : public pybind11::object {
  PYBIND11_OBJECT_DEFAULT(ArrayOf, pybind11::object, IsAnything)
};

// Return the elements of `value`, an array of exactly T, C-contiguous, of `ndim` dimensions (any number when it is -1).
// They are valid while the array lives. TypeError or ValueError names the argument.
template <class T>
std::span<const T> View(const pybind11::object& value, const char* name, pybind11::ssize_t ndim = 1) {
  namespace py = pybind11;
  const std::string wanted =
      std::string(name) + ": expected a C-contiguous numpy array of " + std::string(py::str(py::dtype::of<T>()));
  if (!py::isinstance<py::array>(value)) {
    throw py::type_error(wanted + ", got " + std::string(py::str(py::type::of(value))));
  }
  const auto array = py::reinterpret_borrow<py::array>(value);
  if (!array.dtype().equal(py::dtype::of<T>())) {
    throw py::type_error(wanted + ", got " + std::string(py::str(array.dtype())));
  }
  if ((array.flags() & py::array::c_style) == 0) throw py::value_error(wanted + ", got one with strides");
  if (ndim >= 0 && array.ndim() != ndim) {
    throw py::value_error(wanted + " with " + std::to_string(ndim) + " dimensions, got " +
                          std::to_string(array.ndim()));
  }
  return {static_cast<const T*>(array.data()), static_cast<size_t>(array.size())};
}

// Do the same for an array that is written to.
template <class T>
std::span<T> WritableView(const pybind11::object& value, const char* name, pybind11::ssize_t ndim = 1) {
  namespace py = pybind11;
  const std::span<const T> view = View<T>(value, name, ndim);
  auto array = py::reinterpret_borrow<py::array>(value);
  if (!array.writeable()) throw py::value_error(std::string(name) + ": the array is read-only");
  return {static_cast<T*>(array.mutable_data()), view.size()};
}

template <class T>
pybind11::array_t<T> ToArray(const std::vector<T>& values) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

}  // namespace everlong::bindings

template <class T>
struct pybind11::detail::handle_type_name<everlong::bindings::ArrayOf<T>> {
  static constexpr auto name = const_name("numpy.typing.NDArray[") + npy_format_descriptor<T>::name + const_name("]");
};
template <>
struct pybind11::detail::handle_type_name<everlong::bindings::ArrayOf<void>> {
  static constexpr auto name = const_name("numpy.typing.NDArray[typing.Any]");
};
