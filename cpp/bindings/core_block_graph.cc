// memory.graph: the graph over the blocks of a memory (everlong/os/graph.h).
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <utility>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_graph.h"
#include "core_memory.h"
#include "core_names.h"
#include "everlong/graph/names.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using GraphHandle = ObjectHandle<os::BlockGraph>;

store::NodeKind ParseNodeKind(const std::string& name) {
  using store::NodeKind;
  constexpr std::array kKinds{NodeKind::kBlock, NodeKind::kTopic, NodeKind::kTimeline, NodeKind::kEntity};
  return kKinds.at(PlaceOf("kind", name, {"block", "topic", "timeline", "entity"}));
}

void Grow(const GraphHandle& self, int32_t levels, double radius, double share, double growth, int64_t most_members,
          int64_t looked_at, uint64_t seed) {
  const graph::GardenerOptions options =
      GardenerOptionsOf(1, levels, radius, share, growth, most_members, looked_at, seed);
  RaiseIfError(self.Call([&](os::BlockGraph& graph) { return graph.Grow(options); }));
}

void BindNodes(py::module_& module) {
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

}  // namespace

void BindBlockGraph(py::module_& module) {
  BindNodes(module);
  const graph::GardenerOptions defaults;
  py::class_<GraphHandle>(module, "BlockGraph",
                          R"(The graph over the blocks of a memory: cpp/os/include/everlong/os/graph.h.

Thread-safe: tend runs beside searches and appends, and takes turns with grow and with forgetting.)")
      .def("grow", &Grow, py::kw_only(), py::arg("levels") = defaults.levels, py::arg("radius") = 0.0,
           py::arg("share") = defaults.share, py::arg("growth") = defaults.growth,
           py::arg("most_members") = defaults.most_members, py::arg("looked_at") = defaults.looked_at,
           py::arg("seed") = 0,
           "Grow a graph over the blocks from now on, by the encoder's vectors after set_page_vectors, else the keys'.")
      .def("tend", Method(&os::BlockGraph::Tend), py::arg("most_blocks"),
           "Give blocks their nodes, in one commit. Return how many; 0: all have one, or wait for the encoder.")
      .def("read",
           [](const GraphHandle& self) {
             store::Graph graph = OrRaise(self.Call([](os::BlockGraph& of) { return of.Read(); }));
             return std::pair(std::move(graph.nodes), std::move(graph.edges));
           })
      .def("node", Method(&os::BlockGraph::Node), py::arg("id"))
      .def(
          "nodes",
          [](const GraphHandle& self, const std::string& kind) {
            const store::NodeKind of = ParseNodeKind(kind);
            return OrRaise(self.Call([&](os::BlockGraph& graph) { return graph.Nodes(of); }));
          },
          py::arg("kind"))
      .def("edges", Method(&os::BlockGraph::EdgesOf), py::arg("node"), "Return edges from it and to it.")
      .def("path", Method(&os::BlockGraph::Path), py::arg("source"), py::arg("target"))
      .def(
          "tag_buckets",
          [](const GraphHandle& self) {
            return BucketsOf(self.Call([](os::BlockGraph& graph) { return graph.TagBuckets(); }));
          },
          "Return (year, month, day, stream, blocks) by when their events happened, or they were archived.");
}

}  // namespace everlong::bindings
