// A memory's results as Python objects: pages, blocks, groups, counts.
#include <pybind11/operators.h>
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
using os::FoundGroup;
using os::SearchResult;
using store::BlockInfo;
using store::Damage;
using store::StoreStats;
using store::VerifyReport;

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

// Bind begin and end of the struct's span.
template <class T>
void BindSpan(py::class_<T>& type) {
  type.def_property_readonly("begin", [](const T& self) { return self.span.begin; })
      .def_property_readonly("end", [](const T& self) { return self.span.end; });
}

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
      .def_readwrite("sink_tokens", &PageRef::sink_tokens)
      .def(py::self == py::self)
      .def("__repr__", [](const PageRef& self) {
        return "PageRef(block=" + std::to_string(self.block) + ", page=" + std::to_string(self.page) +
               ", stream=" + std::to_string(self.stream) + ", begin=" + std::to_string(self.span.begin) +
               ", end=" + std::to_string(self.span.end) + ", sink_tokens=" + std::to_string(self.sink_tokens) + ")";
      });

  py::class_<BlockInfo> block(module, "BlockInfo");
  BindSpan(block);
  block.def_readonly("id", &BlockInfo::id)
      .def_readonly("stream", &BlockInfo::stream)
      .def_readonly("sink_tokens", &BlockInfo::sink_tokens)
      .def_readonly("source", &BlockInfo::source)
      .def_readonly("created_at", &BlockInfo::created_at)
      .def_readonly("tags", &BlockInfo::tags)
      .def_readonly("pages", &BlockInfo::pages)
      .def_readonly("payload_bytes", &BlockInfo::payload_bytes)
      .def_property_readonly("role", [](const BlockInfo& self) { return NameOf(self.role); });

  py::class_<FoundGroup> group(module, "FoundGroup");
  BindSpan(group);
  group.def_readonly("pages", &FoundGroup::pages)
      .def_readonly("page_scores", &FoundGroup::page_scores)
      .def_readonly("stream", &FoundGroup::stream)
      .def_readonly("source", &FoundGroup::source)
      .def_readonly("score", &FoundGroup::score)
      .def_property_readonly("found_by", [](const FoundGroup& self) { return PartNames(self.found_by); })
      .def_readonly("confidence", &FoundGroup::confidence)
      .def_readonly("walked", &FoundGroup::walked);

  py::class_<SearchResult>(module, "SearchResult")
      .def_readonly("groups", &SearchResult::groups)
      .def_readonly("top_mass", &SearchResult::top_mass)
      .def_readonly("agreed", &SearchResult::agreed)
      .def_readonly("decisiveness", &SearchResult::decisiveness)
      .def_readonly("confidence", &SearchResult::confidence)
      .def_property_readonly("signs", [](const SearchResult& self) { return NamedSigns(self.signs); })
      .def_property_readonly("narrowed_by",
                             [](const SearchResult& self) -> std::optional<std::string> {
                               if (!self.narrowed_by) return std::nullopt;
                               return std::string(graph::NameOf(*self.narrowed_by));
                             })
      .def_readonly("narrowed_to", &SearchResult::narrowed_to)
      .def_property_readonly("walk", [](const SearchResult& self) {
        return self.walk ? std::make_shared<os::WalkReport>(*self.walk) : nullptr;
      });

  py::class_<os::PageRanking>(module, "PageRanking")
      .def_property_readonly("part", [](const os::PageRanking& self) { return NameOf(self.part); })
      .def_property_readonly("granularity", [](const os::PageRanking& self) { return NameOf(self.granularity); })
      .def_readonly("pages", &os::PageRanking::pages)
      .def_readonly("scores", &os::PageRanking::scores)
      .def_readonly("whole", &os::PageRanking::whole)
      .def_readonly("unnamed", &os::PageRanking::unnamed);

  py::class_<StoreStats>(module, "StoreStats")
      .def_readonly("blocks", &StoreStats::blocks)
      .def_readonly("pages", &StoreStats::pages)
      .def_readonly("tokens", &StoreStats::tokens)
      .def_readonly("payload_bytes", &StoreStats::payload_bytes)
      .def_readonly("tensor_bytes", &StoreStats::tensor_bytes)
      .def_readonly("graph_nodes", &StoreStats::graph_nodes)
      .def_readonly("graph_edges", &StoreStats::graph_edges)
      .def_readonly("disk_bytes", &StoreStats::disk_bytes)
      .def_readonly("dead_bytes", &StoreStats::dead_bytes)
      .def_readonly("host_bytes", &StoreStats::host_bytes)
      .def_readonly("index_bytes", &StoreStats::index_bytes);

  py::class_<Damage>(module, "Damage").def_readonly("block", &Damage::block).def_readonly("what", &Damage::what);

  py::class_<VerifyReport>(module, "VerifyReport")
      .def_readonly("blocks", &VerifyReport::blocks)
      .def_readonly("records", &VerifyReport::records)
      .def_readonly("bytes", &VerifyReport::bytes)
      .def_readonly("damage", &VerifyReport::damage)
      .def_readonly("dropped", &VerifyReport::dropped);
}

}  // namespace everlong::bindings
