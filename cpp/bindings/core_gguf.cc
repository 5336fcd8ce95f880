// What a GGUF file says of itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl/filesystem.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "core_bindings.h"
#include "core_errors.h"
#include "core_gil.h"
#include "everlong/weights/block_format.h"
#include "everlong/weights/gguf_file.h"

namespace py = pybind11;

namespace everlong::bindings {
namespace {

py::object ValueOf(int64_t number) { return py::int_(number); }
py::object ValueOf(double number) { return py::float_(number); }
py::object ValueOf(const std::string& text) { return py::bytes(text); }

py::list ListOf(const weights::GgufValues& values) {
  return std::visit(
      [](const auto& typed) {
        py::list list(typed.size());
        for (size_t i = 0; i < typed.size(); ++i) list[i] = ValueOf(typed[i]);
        return list;
      },
      values);
}

// Return (metadata, tensors, where the tensors begin).
py::tuple ReadGguf(const std::filesystem::path& path) {
  const weights::GgufFile file = ValueOrRaise(Unlocked([&] { return weights::ReadGguf(FilePath(path)); }));
  py::list metadata;
  for (const weights::GgufEntry& entry : file.metadata) {
    metadata.append(py::make_tuple(TextOf(entry.key), entry.type, entry.is_array, ListOf(entry.values)));
  }
  py::list tensors;
  for (const weights::GgufTensor& tensor : file.tensors) {
    py::tuple shape(tensor.shape.size());
    for (size_t d = 0; d < tensor.shape.size(); ++d) shape[d] = py::int_(tensor.shape[d]);
    tensors.append(py::make_tuple(TextOf(tensor.name), tensor.type, shape, tensor.offset, tensor.bytes));
  }
  return py::make_tuple(metadata, tensors, file.data_offset);
}

py::tuple BlockShapeOf(int32_t format) {
  const weights::BlockShape shape = weights::ShapeOf(static_cast<weights::BlockFormat>(format));
  return py::make_tuple(shape.elements, shape.bytes);
}

}  // namespace

void BindGguf(py::module_& module) {
  module.def(
      "read_gguf", &ReadGguf, py::arg("path"),
      "Return what a GGUF file says of itself: entries (key, type, is array, values, texts as bytes), tensors "
      "(name, type, shape, offset in the file, bytes; -1 for a format of unknown size), and where tensors begin. "
      "CorruptMemoryError for a file that is cut short or damaged.");
  module.def("block_shape", &BlockShapeOf, py::arg("format"),
             "Return elements and bytes of a block of a format of torch.ops.everlong.block_linear; (0, 0) for others.");
}

}  // namespace everlong::bindings
