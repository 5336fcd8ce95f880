// What searches find, as Python objects.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core_bindings.h"
#include "everlong/index/confidence.h"
#include "everlong/index/part_kinds.h"
#include "everlong/os/memory.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::FoundGroup;
using os::SearchResult;

std::vector<std::string> PartNames(const index::IndexParts& parts) {
  std::vector<std::string> names;
  for (const index::IndexPart part : index::AllIndexParts()) {
    if (parts.Has(part)) names.emplace_back(NameOf(part));
  }
  return names;
}

// Return "heads, page" and so on for the parts that were asked, and "odds".
std::map<std::string, double> NamedSigns(const index::Signs& signs) {
  std::map<std::string, double> named{{"odds", signs.odds}};
  for (size_t at = 0; at < index::kTellingRankings.size(); ++at) {
    const auto& [part, granularity] = index::kTellingRankings[at];
    if (!signs.parts.Has(part)) continue;
    named.emplace(std::string(NameOf(part)).append(", ").append(NameOf(granularity)), signs.best[at]);
  }
  return named;
}

void BindGroup(py::module_& module) {
  py::class_<FoundGroup>(module, "FoundGroup")
      .def_readonly("pages", &FoundGroup::pages)
      .def_readonly("page_scores", &FoundGroup::page_scores,
                    "Scores of `pages`; minus infinity for a neighbour that nothing found.")
      .def_readonly("stream", &FoundGroup::stream)
      .def_property_readonly("begin", [](const FoundGroup& self) { return self.span.begin; })
      .def_property_readonly("end", [](const FoundGroup& self) { return self.span.end; })
      .def_readonly("source", &FoundGroup::source)
      .def_readonly("score", &FoundGroup::score)
      .def_property_readonly(
          "found_by", [](const FoundGroup& self) { return PartNames(self.found_by); },
          R"(Any of "heads", "lexical", "mean_pool", "hnsw", "embedding".)")
      .def_readonly("confidence", &FoundGroup::confidence,
                    "How likely it holds the answer, 0..1; None as in SearchResult.confidence.")
      .def_readonly("walked", &FoundGroup::walked, "Whether a walk came to it from another page.");
}

void BindResult(py::module_& module) {
  py::class_<SearchResult>(module, "SearchResult")
      .def_readonly("groups", &SearchResult::groups)
      .def_readonly("top_mass", &SearchResult::top_mass)
      .def_readonly("agreed", &SearchResult::agreed)
      .def_readonly("decisiveness", &SearchResult::decisiveness)
      .def_readonly("confidence", &SearchResult::confidence,
                    R"(How likely one of the groups holds the answer, 0..1: the sum of theirs.

None where all parts asked have scores that do not tell right from wrong ("mean_pool", "hnsw").)")
      .def_property_readonly(
          "signs", [](const SearchResult& self) { return NamedSigns(self.signs); },
          R"(What `confidence` is made of: "odds", and "heads, page" and so on for the parts that were asked.)")
      .def_property_readonly(
          "narrowed_by",
          [](const SearchResult& self) -> std::optional<std::string> {
            if (!self.narrowed_by) return std::nullopt;
            return std::string(graph::NameOf(*self.narrowed_by));
          },
          "As in TagTree.narrow; None where the search was not to be narrowed.")
      .def_readonly("narrowed_to", &SearchResult::narrowed_to, "Number of blocks.")
      .def_property_readonly(
          "walk",
          [](const SearchResult& self) {
            return self.walk ? std::optional(std::make_shared<os::WalkReport>(*self.walk)) : std::nullopt;
          },
          "The walk of a search that was asked for one.");
}

void BindRanking(py::module_& module) {
  py::class_<os::PageRanking>(module, "PageRanking", "A part's pages, best first, by one of its granularities.")
      .def_property_readonly(
          "part", [](const os::PageRanking& self) { return NameOf(self.part); }, "As in FoundGroup.found_by.")
      .def_property_readonly(
          "granularity", [](const os::PageRanking& self) { return NameOf(self.granularity); },
          R"(What is scored: for "page" each page alone, for "group" a page with its neighbours.

Such a group stands at its middle page.)")
      .def_readonly("pages", &os::PageRanking::pages)
      .def_readonly("scores", &os::PageRanking::scores, "Scores of `pages`.")
      .def_readonly("whole", &os::PageRanking::whole, "Score of a page that has all that is asked for.")
      .def_readonly("unnamed", &os::PageRanking::unnamed, "The most that a page which is not among these scores.");
}

}  // namespace

void BindFound(py::module_& module) {
  BindGroup(module);
  BindResult(module);
  BindRanking(module);
}

}  // namespace everlong::bindings
