// The Gardener on its own (everlong/graph/gardener.h), with the vectors of its blocks in RAM.
#include "core_graph.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_errors.h"
#include "core_held.h"
#include "everlong/graph/gardener.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using graph::Centre;
using graph::GardenerOptions;

// Thread-safe: one thread at a time adds, forgets or asks.
class LockedGardener {
 public:
  explicit LockedGardener(const GardenerOptions& options)
      : dimension_(options.dimension), gardener_(options, [this](int64_t block) -> Result<std::vector<float>> {
          const auto found = vectors_.find(block);
          if (found == vectors_.end()) return NotFoundError("no vector of block " + std::to_string(block));
          return found->second;
        }) {}
  LockedGardener(const LockedGardener&) = delete;
  LockedGardener& operator=(const LockedGardener&) = delete;

  Status Add(std::span<const int64_t> blocks, std::span<const float> vectors) {
    const std::scoped_lock lock(mutex_);
    const auto width = static_cast<size_t>(dimension_);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::span<const float> vector = vectors.subspan(i * width, width);
      const bool is_new = vectors_.try_emplace(blocks[i], vector.begin(), vector.end()).second;
      const Status added = gardener_.Add(blocks[i], vector, 0);
      if (!added.ok() && is_new) vectors_.erase(blocks[i]);
      EVERLONG_RETURN_IF_ERROR(added);
      static_cast<void>(gardener_.TakeChange());  // nobody stores it
    }
    return OkStatus();
  }
  Status Forget(int64_t block) {
    const std::scoped_lock lock(mutex_);
    EVERLONG_RETURN_IF_ERROR(gardener_.Forget(block));
    vectors_.erase(block);
    return OkStatus();
  }
  // Return what `ask` says of the Gardener, while nobody changes it.
  template <class Ask>
  [[nodiscard]] auto Asked(const Ask& ask) const {
    const std::scoped_lock lock(mutex_);
    return ask(gardener_);
  }
  [[nodiscard]] int32_t dimension() const { return dimension_; }

 private:
  int32_t dimension_;
  mutable std::mutex mutex_;  // guards the rest
  std::unordered_map<int64_t, std::vector<float>> vectors_;
  graph::Gardener gardener_;
};

using GardenerHandle = Held<LockedGardener>;

// Bind what `ask` says of the Gardener to arguments of Python's.
template <class Return, class... Arguments>
auto Asking(Return (graph::Gardener::*ask)(Arguments...) const) {
  return [ask](const GardenerHandle& self, Arguments... arguments) {
    return self.Call([&](const LockedGardener& locked) {
      return locked.Asked([&](const graph::Gardener& gardener) { return (gardener.*ask)(arguments...); });
    });
  };
}

void Add(const GardenerHandle& self, const ArrayOf<int64_t>& blocks, const ArrayOf<float>& vectors) {
  const auto ids = View<int64_t>(blocks, "blocks");
  const auto rows = View<float>(vectors, "vectors", 2);
  const int32_t dimension = self.Share()->dimension();
  if (rows.size() != ids.size() * static_cast<size_t>(dimension)) {
    throw py::value_error("vectors: expected [" + std::to_string(ids.size()) + ", " + std::to_string(dimension) + "]");
  }
  RaiseIfError(self.Call([&](LockedGardener& gardener) { return gardener.Add(ids, rows); }));
}

void BindCentre(py::module_& module) {
  py::class_<Centre>(module, "Centre")
      .def_readonly("id", &Centre::id)
      .def_readonly("level", &Centre::level)
      .def_readonly("parent", &Centre::parent)
      .def_readonly("members", &Centre::members)
      .def_property_readonly("count", [](const Centre& self) { return self.sums.count(); })
      .def_property_readonly("square", [](const Centre& self) { return self.sums.square(); })
      .def_property_readonly("linear", [](const Centre& self) {
        const auto linear = self.sums.linear();
        return py::array_t<double>(static_cast<py::ssize_t>(linear.size()), linear.data());
      });
}

}  // namespace

GardenerOptions GardenerOptionsOf(int32_t dimension, int32_t levels, double radius, double share, double growth,
                                  int64_t most_members, int64_t looked_at, uint64_t seed) {
  GardenerOptions options;
  options.dimension = dimension;
  options.levels = levels;
  options.radius = radius;
  options.share = share;
  options.growth = growth;
  options.most_members = most_members;
  options.looked_at = looked_at;
  options.seed = seed;
  RaiseIfError(Validate(options));
  return options;
}

void BindGraph(py::module_& module) {
  const GardenerOptions defaults;
  module.attr("GRAPH_SHARE") = defaults.share;
  BindCentre(module);
  py::class_<GardenerHandle>(
      module, "Gardener",
      R"(cpp/graph/include/everlong/graph/gardener.h, with the vectors of its blocks in RAM: for tests and benchmarks.

Thread-safe: calls take turns. One call of add is one turn.)")
      .def(py::init([](int32_t dimension, int32_t levels, double radius, double share, double growth,
                       int64_t most_members, int64_t looked_at, uint64_t seed) {
             auto gardener = std::make_shared<LockedGardener>(
                 GardenerOptionsOf(dimension, levels, radius, share, growth, most_members, looked_at, seed));
             return std::make_unique<GardenerHandle>(std::move(gardener), "the Gardener");
           }),
           py::arg("dimension"), py::kw_only(), py::arg("levels") = defaults.levels, py::arg("radius") = 0.0,
           py::arg("share") = defaults.share, py::arg("growth") = defaults.growth,
           py::arg("most_members") = defaults.most_members, py::arg("looked_at") = defaults.looked_at,
           py::arg("seed") = 0)
      .def("add", &Add, py::arg("blocks"), py::arg("vectors"),
           "Add blocks one after the other. Those before one that is refused stay.")
      .def(
          "forget",
          [](const GardenerHandle& self, int64_t block) {
            RaiseIfError(self.Call([&](LockedGardener& gardener) { return gardener.Forget(block); }));
          },
          py::arg("block"))
      .def("centre_of", Asking(&graph::Gardener::CentreOf), py::arg("block"))
      .def("centres", Asking(&graph::Gardener::Centres), "Return the centres by level, then id.")
      .def("size", Asking(&graph::Gardener::centres), py::arg("level") = 0)
      .def("radius", Asking(&graph::Gardener::Radius), py::arg("level") = 0)
      .def_property_readonly("nbytes", Asking(&graph::Gardener::bytes));
}

}  // namespace everlong::bindings
