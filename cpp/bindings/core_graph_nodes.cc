// What a memory's graph consists of (everlong/store/graph.h).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "core_arrays.h"
#include "core_bindings.h"
#include "everlong/graph/names.h"
#include "everlong/store/graph.h"

namespace everlong::bindings {

namespace py = pybind11;

void BindGraphNodes(py::module_& module) {
  py::class_<store::GraphNode>(
      module, "GraphNode",
      "cpp/store/include/everlong/store/graph.h; python/everlong/graph/graph.py is its Python API.")
      .def_readonly("id", &store::GraphNode::id)
      .def_property_readonly("kind", [](const store::GraphNode& self) { return graph::NameOf(self.kind); })
      .def_readonly("level", &store::GraphNode::level)
      .def_property_readonly("vector", [](const store::GraphNode& self) { return ToArray(self.vector); })
      .def_readonly("count", &store::GraphNode::count)
      .def_property_readonly("linear_sum", [](const store::GraphNode& self) { return ToArray(self.linear_sum); })
      .def_readonly("square_sum", &store::GraphNode::square_sum)
      .def_readonly("created_at", &store::GraphNode::created_at)
      .def_readonly("updated_at", &store::GraphNode::updated_at);
  py::class_<store::GraphEdge>(module, "GraphEdge")
      .def_readonly("source", &store::GraphEdge::from)
      .def_readonly("target", &store::GraphEdge::to)
      .def_property_readonly("kind", [](const store::GraphEdge& self) { return graph::NameOf(self.kind); })
      .def_readonly("weight", &store::GraphEdge::weight)
      .def_readonly("time", &store::GraphEdge::time);
}

}  // namespace everlong::bindings
