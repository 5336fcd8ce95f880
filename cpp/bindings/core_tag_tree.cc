// The Time -> Tag tree on its own (everlong/graph/tag_tree.h), and the object that narrows a search.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_graph.h"
#include "everlong/graph/own_tags.h"
#include "everlong/graph/tag_tree.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using graph::TagTree;

}  // namespace

graph::TagQuery TagQueryOf(const std::vector<std::pair<double, double>>& times, std::vector<std::string> tags,
                           int32_t most) {
  if (most < 1) throw py::value_error("most is " + std::to_string(most) + ", expected at least 1");
  graph::TagQuery query;
  for (const auto& [since, before] : times) query.times.push_back({since, before});
  query.tags = std::move(tags);
  query.most = most;
  return query;
}

BucketTuples BucketsOf(const std::vector<TagTree::Bucket>& buckets) {
  BucketTuples list;
  for (const TagTree::Bucket& of : buckets) {
    list.append(py::make_tuple(of.year, of.month, of.day, of.session, of.blocks));
  }
  return list;
}

void BindTagTree(py::module_& module) {
  module.attr("OWN_TAG") = graph::kOwnTag;
  module.attr("HAPPENED_TAG") = graph::kHappenedTag;
  module.attr("KEY_TAG") = graph::kKeyTag;
  using Times = std::vector<std::pair<double, double>>;
  const int32_t most = graph::TagQuery{}.most;
  py::class_<TagTree>(module, "TagTree",
                      R"(Blocks by time and tag (cpp/graph/include/everlong/graph/tag_tree.h).

Thread-safe: a call keeps the GIL, so calls take turns.)")
      .def(py::init())
      .def(
          "add",
          [](TagTree& self, int64_t block, double time, int64_t session, const std::vector<std::string>& tags) {
            if (block < 1 || block <= self.newest()) {
              throw py::value_error("block is " + std::to_string(block) + ", expected above " +
                                    std::to_string(self.newest()));
            }
            self.Add(block, time, session, tags);
          },
          py::arg("block"), py::arg("time"), py::arg("session"), py::arg("tags"),
          "Add a block. ValueError for an id that is not above all before.")
      .def(
          "forget",
          [](TagTree& self, int64_t block, const std::vector<std::string>& tags) { self.Forget(block, tags); },
          py::arg("block"), py::arg("tags"), "Remove a block. `tags` are those it was added with.")
      .def(
          "narrow",
          [](const TagTree& self, const Times& times, std::vector<std::string> tags, int32_t of_most) {
            const graph::Narrowed narrowed = self.Narrow(TagQueryOf(times, std::move(tags), of_most));
            return py::make_tuple(graph::NameOf(narrowed.by), ToArray(narrowed.blocks));
          },
          py::arg("times") = Times{}, py::arg("tags") = std::vector<std::string>{}, py::arg("most") = most,
          R"(Return what narrowed it, and the ids, ascending.

The first is "times_and_all_tags", "times_and_some_tags", "times", "tags" or "nothing".)")
      .def("blocks_with", &TagTree::BlocksWith, py::arg("tag"))
      .def(
          "buckets", [](const TagTree& self) { return BucketsOf(self.Buckets()); },
          "Return (year, month, day, session, blocks), in order of time.")
      .def("__len__", &TagTree::blocks)
      .def("__contains__", &TagTree::Has, py::arg("block"))
      .def_property_readonly("nbytes", &TagTree::bytes);

  py::class_<os::NarrowRequest>(module, "Narrow",
                                "Times, from and up to, and tags that a search is narrowed by. Immutable.")
      .def(py::init([](const Times& times, std::vector<std::string> tags, int32_t of_most, bool soft) {
             return os::NarrowRequest{TagQueryOf(times, std::move(tags), of_most), soft};
           }),
           py::arg("times") = Times{}, py::arg("tags") = std::vector<std::string>{}, py::kw_only(),
           py::arg("most") = most, py::arg("soft") = true);
}

}  // namespace everlong::bindings
