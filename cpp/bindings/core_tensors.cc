#include "core_tensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>

namespace everlong::bindings {
namespace {

namespace py = pybind11;

struct NumberKind {
  std::string_view numpy;  // kind and bytes, as numpy writes it
  std::string_view dtype;
};
// The kinds of each dtype. If a numpy kind stands for several, an array becomes the first one.
constexpr std::array<NumberKind, 12> kKinds = {{{"f8", "F64"},
                                                {"f4", "F32"},
                                                {"f2", "F16"},
                                                {"u2", "BF16"},
                                                {"i8", "I64"},
                                                {"i4", "I32"},
                                                {"i2", "I16"},
                                                {"i1", "I8"},
                                                {"u1", "U8"},
                                                {"u1", "F8_E4M3"},
                                                {"u1", "F8_E5M2"},
                                                {"b1", "BOOL"}}};

}  // namespace

std::vector<store::TensorView> TensorsOf(const ArraysByName& arrays) {
  std::vector<store::TensorView> tensors;
  for (const auto& [name, value] : arrays) {
    const std::string wanted = "tensors[\"" + name + "\"]: expected a C-contiguous numpy array";
    if (!py::isinstance<py::array>(value)) {
      throw py::type_error(wanted + ", got " + std::string(py::str(py::type::of(value))));
    }
    const auto array = py::reinterpret_borrow<py::array>(value);
    const py::dtype dtype = array.dtype();
    const std::string numpy = dtype.kind() + std::to_string(dtype.itemsize());
    const auto* const kind = std::ranges::find(kKinds, numpy, &NumberKind::numpy);
    if (kind == kKinds.end() || dtype.byteorder() == '>') {
      throw py::type_error(wanted + " of floats, integers, booleans, or uint16 for bfloat16, got " +
                           std::string(py::str(dtype)));
    }
    if ((array.flags() & py::array::c_style) == 0) throw py::value_error(wanted + ", got one with strides");
    tensors.push_back({name,
                       std::string(kind->dtype),
                       {array.shape(), array.shape() + array.ndim()},
                       std::span(static_cast<const std::byte*>(array.data()), static_cast<size_t>(array.nbytes()))});
  }
  return tensors;
}

py::array ToArray(const store::Tensor& tensor) {
  const auto* const kind = std::ranges::find(kKinds, tensor.dtype, &NumberKind::dtype);
  py::array array(py::dtype(std::string(kind->numpy)),
                  std::vector<py::ssize_t>(tensor.shape.begin(), tensor.shape.end()));
  if (!tensor.bytes.empty()) std::memcpy(array.mutable_data(), tensor.bytes.data(), tensor.bytes.size());
  return array;
}

}  // namespace everlong::bindings
