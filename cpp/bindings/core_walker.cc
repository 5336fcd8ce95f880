// The Walker's policy, the walk that a search is asked for, and the report of a walk (everlong/graph/walker.h).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_errors.h"
#include "core_graph.h"
#include "core_names.h"
#include "everlong/graph/walker.h"
#include "everlong/os/search.h"

namespace everlong::bindings {
namespace {

// How a walk chooses, as Python names it.
class WalkBy : public pybind11::str {
  using pybind11::str::str;
};

}  // namespace
}  // namespace everlong::bindings

template <>
struct pybind11::detail::handle_type_name<everlong::bindings::WalkBy> {
  static constexpr auto name = const_name("typing.Literal['best', 'draw', 'teacher']");
};

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using graph::WalkChoice;
using graph::WalkerPolicy;
using graph::WalkStep;
using os::WalkReport;

// A step of a walk, as arrays over its ways.
struct StepView {
  std::shared_ptr<const WalkReport> report;
  size_t number;
  [[nodiscard]] const WalkStep& step() const { return report->trace.steps[number]; }
};

template <class T, class Of>
py::array_t<T> OverWays(const StepView& view, const Of& of) {
  const auto& ways = view.step().ways;
  py::array_t<T> array(static_cast<py::ssize_t>(ways.size()));
  std::ranges::transform(ways, array.mutable_data(), of);
  return array;
}

WalkChoice::By ParseBy(const std::string& name) {
  constexpr std::array kBys{WalkChoice::By::kBest, WalkChoice::By::kDraw, WalkChoice::By::kTeacher};
  return kBys.at(PlaceOf("by", name, {"best", "draw", "teacher"}));
}

void BindPolicy(py::module_& module) {
  py::class_<WalkerPolicy, std::shared_ptr<WalkerPolicy>>(
      module, "WalkerPolicy", "Decides where a walk goes (cpp/graph/include/everlong/graph/walker.h). Immutable.")
      .def(py::init([](const ArrayOf<float>& inner, const ArrayOf<float>& inner_bias, const ArrayOf<float>& outer,
                       float outer_bias) {
             return std::make_shared<WalkerPolicy>(
                 ValueOrRaise(WalkerPolicy::Of(View<float>(inner, "inner", 2), View<float>(inner_bias, "inner_bias"),
                                               View<float>(outer, "outer"), outer_bias)));
           }),
           py::arg("inner"), py::arg("inner_bias"), py::arg("outer"), py::arg("outer_bias"),
           "Take inner [units, WALK_FEATURES], inner_bias [units], outer [units]. ValueError for other shapes.")
      .def(
          "logits",
          [](const WalkerPolicy& self, const ArrayOf<float>& features) {
            const auto rows = View<float>(features, "features", 2);
            if (rows.size() % graph::kWalkFeatures != 0) {
              throw py::value_error("features: expected rows of " + std::to_string(graph::kWalkFeatures));
            }
            std::vector<float> logits;
            for (size_t at = 0; at < rows.size(); at += graph::kWalkFeatures) {
              graph::WalkFeatures row;
              std::ranges::copy(rows.subspan(at, graph::kWalkFeatures), row.begin());
              logits.push_back(self.Logit(row));
            }
            return ToArray(logits);
          },
          py::arg("features"), "Return [n] for features [n, WALK_FEATURES].");
}

void BindWalk(py::module_& module) {
  const graph::WalkBudget budget;
  py::class_<WalkHandle>(module, "Walk", "How a search walks. Immutable.")
      .def(py::init([](std::shared_ptr<WalkerPolicy> policy, int32_t loads, int32_t hops, int32_t nodes,
                       const WalkBy& by, uint64_t seed, std::vector<PageRef> gold, bool keep_all) {
             if (policy == nullptr) throw py::type_error("policy is None");
             WalkHandle handle;
             handle.request.budget = {loads, hops, nodes};
             RaiseIfError(Validate(handle.request.budget));
             handle.request.policy = policy.get();
             handle.request.by = ParseBy(by);
             handle.request.seed = seed;
             handle.request.gold = std::move(gold);
             handle.request.keep_all = keep_all;
             handle.policy = std::move(policy);
             return handle;
           }),
           py::arg("policy"), py::kw_only(), py::arg("loads") = budget.loads, py::arg("hops") = budget.hops,
           py::arg("nodes") = budget.nodes, py::arg("by") = "best", py::arg("seed") = 0,
           py::arg("gold") = std::vector<PageRef>{}, py::arg("keep_all") = false,
           R"(Set budgets of page groups, of edges in a row and of ways that are looked at. ValueError below 1.

"draw" takes ways as likely as the policy holds them, "teacher" those that bring pages of `gold`. With
`keep_all` a step has all its ways, else the best few.)");
}

void BindStep(py::module_& module) {
  py::class_<StepView>(module, "WalkStep", "A choice between ways, best first, and ending.")
      .def_property_readonly(
          "pages", [](const StepView& self) { return self.report->pages[self.number]; },
          "Pages that the ways lead to; a page of block 0 for ending.")
      .def_property_readonly("taken", [](const StepView& self) { return self.step().taken; })
      .def_property_readonly(
          "came_from",
          [](const StepView& self) {
            return OverWays<int32_t>(self, [](const graph::SeenWay& way) { return way.from; });
          },
          "Number of the load that leads there; -1 for the search.")
      .def_property_readonly("logits",
                             [](const StepView& self) {
                               return OverWays<float>(self, [](const graph::SeenWay& way) { return way.logit; });
                             })
      .def_property_readonly(
          "right",
          [](const StepView& self) {
            return OverWays<bool>(self, [](const graph::SeenWay& way) { return way.right; });
          },
          "Whether a way brings a missing page of `gold`; for ending, whether none is missing.")
      .def_property_readonly(
          "features",
          [](const StepView& self) {
            const auto& ways = self.step().ways;
            py::array_t<float> array(
                {static_cast<py::ssize_t>(ways.size()), static_cast<py::ssize_t>(graph::kWalkFeatures)});
            float* out = array.mutable_data();
            for (const graph::SeenWay& way : ways) out = std::ranges::copy(way.features, out).out;
            return array;
          },
          "Features [ways, WALK_FEATURES].");
}

void BindReport(py::module_& module) {
  py::class_<WalkReport, std::shared_ptr<WalkReport>>(module, "WalkReport")
      .def_readonly("loads", &WalkReport::loads)
      .def_property_readonly("came_from", [](const WalkReport& self) { return self.trace.from; })
      .def_property_readonly(
          "stopped", [](const WalkReport& self) { return self.trace.stopped; },
          "Whether the policy stopped it; False: a budget did.")
      .def_property_readonly("looked_at", [](const WalkReport& self) { return self.trace.looked_at; })
      .def_property_readonly("steps", [](const std::shared_ptr<WalkReport>& self) {
        std::vector<StepView> steps;
        for (size_t at = 0; at < self->trace.steps.size(); ++at) steps.push_back({self, at});
        return steps;
      });
}

}  // namespace

void BindWalker(py::module_& module) {
  py::list names;
  for (size_t at = 0; at < graph::kWalkFeatures; ++at) {
    names.append(graph::NameOf(static_cast<graph::WalkFeature>(at)));
  }
  module.attr("WALK_FEATURES") = py::tuple(names);
  BindPolicy(module);
  BindWalk(module);
  BindStep(module);
  BindReport(module);
}

}  // namespace everlong::bindings
