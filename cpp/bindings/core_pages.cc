// Pages and blocks of a memory as Python objects.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "core_bindings.h"
#include "everlong/index/confidence.h"
#include "everlong/index/part_kinds.h"
#include "everlong/os/memory.h"
#include "everlong/store/memory_store.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using store::BlockInfo;

}  // namespace

void BindPages(py::module_& module) {
  py::class_<PageRef>(module, "PageRef")
      .def(py::init([](int64_t block, int32_t page, int64_t stream, int64_t begin, int64_t end, int32_t sink_tokens) {
             return PageRef{block, page, stream, {begin, end}, sink_tokens};
           }),
           py::arg("block"), py::arg("page"), py::arg("stream"), py::arg("begin"), py::arg("end"),
           py::arg("sink_tokens") = 0)
      .def_readwrite("block", &PageRef::block)
      .def_readwrite("page", &PageRef::page)
      .def_readwrite("stream", &PageRef::stream)
      .def_property(
          "begin", [](const PageRef& self) { return self.span.begin; },
          [](PageRef& self, int64_t value) { self.span.begin = value; })
      .def_property(
          "end", [](const PageRef& self) { return self.span.end; },
          [](PageRef& self, int64_t value) { self.span.end = value; })
      .def_readwrite("sink_tokens", &PageRef::sink_tokens,
                     "How many of its first tokens are sinks of that stream; no recall brings them back.")
      .def(
          "__eq__",
          [](const PageRef& self, const py::object& other) {
            return py::isinstance<PageRef>(other) && self == other.cast<const PageRef&>();
          },
          py::arg("other"))
      .def("__repr__", [](const PageRef& self) {
        return "PageRef(block=" + std::to_string(self.block) + ", page=" + std::to_string(self.page) +
               ", stream=" + std::to_string(self.stream) + ", begin=" + std::to_string(self.span.begin) +
               ", end=" + std::to_string(self.span.end) + ", sink_tokens=" + std::to_string(self.sink_tokens) + ")";
      });

  py::class_<BlockInfo>(module, "BlockInfo")
      .def_readonly("id", &BlockInfo::id)
      .def_readonly("stream", &BlockInfo::stream)
      .def_property_readonly("begin", [](const BlockInfo& self) { return self.span.begin; })
      .def_property_readonly("end", [](const BlockInfo& self) { return self.span.end; })
      .def_readonly("sink_tokens", &BlockInfo::sink_tokens)
      .def_readonly("source", &BlockInfo::source)
      .def_readonly("created_at", &BlockInfo::created_at)
      .def_readonly("tags", &BlockInfo::tags)
      .def_readonly("pages", &BlockInfo::pages)
      .def_readonly("payload_bytes", &BlockInfo::payload_bytes)
      .def_property_readonly(
          "role", [](const BlockInfo& self) { return NameOf(self.role); }, "One of \"read\", \"asked\" and \"said\".");
}

}  // namespace everlong::bindings
