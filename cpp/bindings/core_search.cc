// memory.search: searches by the indexes, by recency, at random (everlong/os/search.h).
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_graph.h"
#include "core_memory.h"
#include "core_names.h"
#include "everlong/index/confidence.h"
#include "everlong/index/part_kinds.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::FoundGroup;
using os::SearchResult;
using Names = std::vector<std::string>;
using GivenInputs = py::KWArgs<std::optional<ArrayOf<float>>>;
using SearchHandle = ObjectHandle<os::Searcher>;

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

index::IndexParts ParseKinds(const std::vector<std::string>& names) {
  index::IndexParts kinds;
  for (const std::string& name : names) kinds |= {ParsePart("kinds", name)};
  if (kinds.empty()) throw py::value_error("kinds: none, expected at least one");
  return kinds;
}

// Return the arrays that are given by the names of inputs. TypeError for a name that is no input of a part.
index::Inputs InputsOf(const py::dict& given) {
  std::vector<std::string_view> known;
  for (const index::IndexPart part : index::AllIndexParts()) {
    const index::PartKind& kind = index::KindOf(part);
    known.push_back(kind.input);
    known.insert(known.end(), kind.more_inputs.begin(), kind.more_inputs.end());
  }
  index::Inputs inputs;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (name.empty() || std::ranges::find(known, name) == known.end()) {
      throw py::type_error("'" + name + "' is no argument, and no part of the index takes it");
    }
    if (value.is_none()) continue;
    const auto array = py::reinterpret_borrow<py::object>(value);
    index::InputArray& input = inputs[name];
    input.numbers = View<float>(array, name.c_str(), -1);
    const auto shaped = py::reinterpret_borrow<py::array>(array);
    input.shape.assign(shaped.shape(), shaped.shape() + shaped.ndim());
  }
  return inputs;
}

// The result refers to the arrays.
os::SearchRequest RequestOf(const ArrayOf<int32_t>& token_ids, const std::vector<std::string>& kinds,
                            int32_t max_groups, int32_t neighbours, int64_t token_budget, float least_share,
                            const std::vector<std::pair<PageRef, float>>& added, int64_t stream,
                            std::optional<int64_t> resident_from, const std::vector<std::string>& sources,
                            const std::vector<std::string>& tags, std::optional<double> since,
                            std::optional<double> before, const std::vector<std::string>& roles,
                            std::optional<double> happened_since, std::optional<double> happened_before,
                            const std::vector<std::string>& newest_tags, const WalkHandle* walk,
                            const os::NarrowRequest* narrow, const GivenInputs& inputs) {
  os::SearchRequest request;
  if (narrow != nullptr) request.narrow = *narrow;
  if (walk != nullptr) request.walk = walk->request;
  request.token_ids = View<int32_t>(token_ids, "token_ids");
  request.kinds = ParseKinds(kinds);
  request.inputs = InputsOf(inputs);
  request.max_groups = max_groups;
  request.neighbours = neighbours;
  request.token_budget = token_budget;
  request.least_share = least_share;
  for (const auto& [page, score] : added) request.added.push_back({page, score});
  request.stream = stream;
  if (resident_from.has_value()) request.resident_from = *resident_from;
  request.filter = {sources, tags, since, before, ParseRoles(roles), happened_since, happened_before, newest_tags};
  return request;
}

// Bind a method that takes a request: the arguments of RequestOf, and those of its own.
template <class... Arguments>
auto FindBy(os::SearchRequest (*request)(Arguments...)) {
  return [request](const SearchHandle& self, Arguments... arguments) {
    const os::SearchRequest asked = request(arguments...);
    return ValueOrRaise(self.Call([&](os::Searcher& searcher) { return searcher.Find(asked); }));
  };
}
template <class... Arguments>
auto RankingsBy(os::SearchRequest (*request)(Arguments...)) {
  return [request](const SearchHandle& self, int32_t k, Arguments... arguments) {
    const os::SearchRequest asked = request(arguments...);
    return ValueOrRaise(self.Call([&](os::Searcher& searcher) { return searcher.Rankings(asked, k); }));
  };
}

std::vector<PageRef> RecentPages(const SearchHandle& self, int64_t stream, int64_t end, int32_t blocks, Names sources,
                                 Names tags, std::optional<double> since, std::optional<double> before,
                                 const Names& roles, std::optional<double> happened_since,
                                 std::optional<double> happened_before, Names newest_tags) {
  const os::SearchFilter filter{std::move(sources), std::move(tags), since,           before,
                                ParseRoles(roles),  happened_since,  happened_before, std::move(newest_tags)};
  return OrRaise(self.Call([&](os::Searcher& searcher) { return searcher.RecentPages(stream, end, blocks, filter); }));
}

std::vector<PageRef> RandomPages(const SearchHandle& self, int64_t stream, int64_t end, int32_t count, uint64_t seed,
                                 Names sources, Names tags, std::optional<double> since, std::optional<double> before,
                                 const Names& roles, std::optional<double> happened_since,
                                 std::optional<double> happened_before, Names newest_tags) {
  const os::SearchFilter filter{std::move(sources), std::move(tags), since,           before,
                                ParseRoles(roles),  happened_since,  happened_before, std::move(newest_tags)};
  return OrRaise(
      self.Call([&](os::Searcher& searcher) { return searcher.RandomPages(stream, end, count, seed, filter); }));
}

void BindResults(py::module_& module) {
  py::class_<FoundGroup>(module, "FoundGroup")
      .def_readonly("pages", &FoundGroup::pages)
      .def_readonly("page_scores", &FoundGroup::page_scores,
                    "Scores of `pages`; minus infinity for a neighbour that nothing found.")
      .def_property_readonly("begin", [](const FoundGroup& self) { return self.span.begin; })
      .def_property_readonly("end", [](const FoundGroup& self) { return self.span.end; })
      .def_readonly("stream", &FoundGroup::stream)
      .def_readonly("source", &FoundGroup::source)
      .def_readonly("score", &FoundGroup::score)
      .def_property_readonly(
          "found_by", [](const FoundGroup& self) { return PartNames(self.found_by); }, "Names of index_kinds().")
      .def_readonly("confidence", &FoundGroup::confidence,
                    "How likely it holds the answer, 0..1; None as in SearchResult.confidence.")
      .def_readonly("walked", &FoundGroup::walked, "Whether a walk came to it from another page.");

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
          R"(What `confidence` is made of: "odds", and "heads, page" and so on for the parts asked.)")
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

void BindSearch(py::module_& module) {
  BindResults(module);
  py::class_<SearchHandle> searcher(module, "Searcher",
                                    R"(The searches of a memory: cpp/os/include/everlong/os/search.h.

Thread-safe: searches run beside each other and beside changes.)");
  const auto by_request = [&searcher](const char* name, const auto& method, const char* doc, const auto&... first) {
    searcher.def(name, method, first..., py::kw_only(), py::arg("token_ids"),
                 py::arg("kinds") = std::vector<std::string>{"heads", "lexical"}, py::arg("max_groups") = 4,
                 py::arg("neighbours") = 1, py::arg("token_budget") = 1024, py::arg("least_share") = index::kLeastShare,
                 py::arg("added") = std::vector<std::pair<PageRef, float>>{}, py::arg("stream") = 0,
                 py::arg("resident_from") = py::none(), py::arg("sources") = std::vector<std::string>{},
                 py::arg("tags") = std::vector<std::string>{}, py::arg("since") = py::none(),
                 py::arg("before") = py::none(), py::arg("roles") = std::vector<std::string>{},
                 py::arg("happened_since") = py::none(), py::arg("happened_before") = py::none(),
                 py::arg("newest_tags") = std::vector<std::string>{}, py::arg("walk") = nullptr,
                 py::arg("narrow") = nullptr, doc);
  };
  by_request("find", FindBy(&RequestOf),
             R"(Search. Each further argument is an input of a kind of part (index_kinds), by the input's name.

head_queries [tokens, heads, D]; mean_query [Hkv * D]; page_query [dimension] of the page vectors; meaning_query and
encoder_query [tokens, dimension] of Indexes.set_meaning, where the length of a row is the token's weight;
sentence_query [1, sentence_dimension] beside encoder_query. Other shapes raise ValueError, other names TypeError. A
kind without its input is not asked. It searches any of the sources, with all of the tags, in any of the roles ("read",
"asked", "said"). Without roles it searches what was read, and what was said at a discount. Methods below take the same
filters, without the discount. A page beside a group with less than `least_share` of the group's best score adds nothing
to it; with 0 each does. The pages that a `walk` loads come first. `added` is added to the scores of these pages, where
a part names them; ValueError unless they are finite.)");
  by_request(
      "rankings", RankingsBy(&RequestOf),
      R"(Return what each kind finds by itself, in each of its granularities, k best pages each. `find` fuses them.

Arguments as in `find`; those about groups count nothing. ValueError on k < 1.)",
      py::arg("k"));
  const auto filtered = [&searcher](const char* name, const auto& method, const auto&... first) {
    searcher.def(name, method, first..., py::kw_only(), py::arg("sources") = Names{}, py::arg("tags") = Names{},
                 py::arg("since") = py::none(), py::arg("before") = py::none(), py::arg("roles") = Names{},
                 py::arg("happened_since") = py::none(), py::arg("happened_before") = py::none(),
                 py::arg("newest_tags") = Names{});
  };
  filtered("recent_pages", &RecentPages, py::arg("stream"), py::arg("end"), py::arg("blocks"));
  filtered("random_pages", &RandomPages, py::arg("stream"), py::arg("end"), py::arg("count"), py::arg("seed"));
  searcher.def(
      "idf",
      [](const SearchHandle& self, const ArrayOf<int32_t>& token_ids) {
        const auto ids = View<int32_t>(token_ids, "token_ids");
        return ToArray(self.Call([&](os::Searcher& of) { return of.Idf(ids); }));
      },
      py::arg("token_ids"));
}

}  // namespace everlong::bindings
