// Vector indexes on their own (everlong/index/vector_index.h).
#include "core_index.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_errors.h"
#include "core_names.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using index::IdFilter;
using index::Metric;
using index::NeuralInvertedIndex;
using index::VectorHits;
using index::VectorIndex;
using index::VectorStorage;

Metric ParseMetric(const std::string& name) {
  constexpr std::array kMetrics{Metric::kInnerProduct, Metric::kCosine, Metric::kL2};
  return kMetrics.at(PlaceOf("metric", name, {"inner_product", "cosine", "l2"}));
}

VectorStorage ParseStorage(const std::string& name) {
  constexpr std::array kStorages{VectorStorage::kFp32, VectorStorage::kBf16, VectorStorage::kInt8,
                                 VectorStorage::kE4M3};
  return kStorages.at(PlaceOf("storage", name, {"fp32", "bf16", "int8", "e4m3"}));
}

void AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw py::value_error(std::string(name) + ": " + std::to_string(value) + ", expected at least " +
                        std::to_string(least));
}

void AtMost(const char* name, int64_t value, int64_t most) {
  if (value <= most) return;
  throw py::value_error(std::string(name) + ": " + std::to_string(value) + ", expected at most " +
                        std::to_string(most));
}

std::unique_ptr<IndexHandle> Flat(int32_t dimension, const std::string& metric, const std::string& storage) {
  AtLeast("dimension", dimension, 1);
  return std::make_unique<IndexHandle>(index::MakeFlatIndex({dimension, ParseMetric(metric), ParseStorage(storage)}));
}

std::unique_ptr<IndexHandle> Hnsw(int32_t dimension, const std::string& metric, int32_t links, int32_t ef_construction,
                                  int32_t ef, int32_t exact_below) {
  AtLeast("dimension", dimension, 1);
  AtLeast("links", links, 2);
  AtMost("links", links, index::kMostHnswLinks);
  AtLeast("ef_construction", ef_construction, 1);
  AtLeast("ef", ef, 1);
  return std::make_unique<IndexHandle>(
      index::MakeHnswIndex({dimension, ParseMetric(metric), links, ef_construction, ef, exact_below}));
}

std::unique_ptr<ListsHandle> Dnii(int32_t dimension, const std::string& metric, int32_t list_vectors, int32_t probes,
                                  int32_t rescored, int32_t exact_below) {
  AtLeast("dimension", dimension, 1);
  AtLeast("list_vectors", list_vectors, index::kLeastListVectors);
  AtMost("list_vectors", list_vectors, index::kMostListVectors);
  AtLeast("probes", probes, 1);
  AtLeast("rescored", rescored, 1);
  return std::make_unique<ListsHandle>(
      index::MakeNeuralInvertedIndex({dimension, ParseMetric(metric), list_vectors, probes, rescored, exact_below}));
}

template <class Handle, class Index>
std::unique_ptr<Handle> Loaded(Result<std::unique_ptr<Index>> (*load)(const FilePath& file),
                               const std::filesystem::path& file) {
  return std::make_unique<Handle>(ValueOrRaise(Unlocked([&] { return load(file); })));
}

// Return [values.size() / dimension, dimension].
py::array_t<float> Matrix(const std::vector<float>& values, int32_t dimension) {
  const auto rows = static_cast<py::ssize_t>(values.size()) / dimension;
  py::array_t<float> matrix({rows, py::ssize_t{dimension}});
  std::ranges::copy(values, matrix.mutable_data());
  return matrix;
}

// Return the numbers of an array [n, dimension].
std::span<const float> Rows(const ArrayOf<float>& value, const char* name, int32_t dimension) {
  const std::span<const float> rows = View<float>(value, name, 2);
  const py::ssize_t columns = py::reinterpret_borrow<py::array>(value).shape(1);
  if (columns != dimension) {
    throw py::value_error(std::string(name) + ": rows of " + std::to_string(columns) + " numbers, expected " +
                          std::to_string(dimension));
  }
  return rows;
}

using Found = std::pair<py::array_t<int64_t>, py::array_t<float>>;

// Return ids and scores [n, k]; where there are fewer hits, -1 and minus infinity.
Found AsArrays(const std::vector<VectorHits>& hits, int32_t k) {
  const auto count = static_cast<py::ssize_t>(hits.size());
  py::array_t<int64_t> ids({count, py::ssize_t{k}});
  py::array_t<float> scores({count, py::ssize_t{k}});
  std::fill_n(ids.mutable_data(), ids.size(), int64_t{-1});
  std::fill_n(scores.mutable_data(), scores.size(), -std::numeric_limits<float>::infinity());
  for (py::ssize_t query = 0; query < count; ++query) {
    const VectorHits& of_query = hits[static_cast<size_t>(query)];
    for (size_t rank = 0; rank < of_query.size(); ++rank) {
      ids.mutable_at(query, static_cast<py::ssize_t>(rank)) = of_query[rank].id;
      scores.mutable_at(query, static_cast<py::ssize_t>(rank)) = of_query[rank].score;
    }
  }
  return {std::move(ids), std::move(scores)};
}

IdFilter Allowed(const std::optional<ArrayOf<uint8_t>>& allowed) {
  return allowed ? IdFilter::Bitmap(View<uint8_t>(*allowed, "allowed")) : IdFilter();
}

Found Search(const IndexHandle& self, const ArrayOf<float>& queries, int32_t k,
             const std::optional<ArrayOf<uint8_t>>& allowed) {
  const std::span<const float> vectors = Rows(queries, "queries", self.dimension());
  const IdFilter filter = Allowed(allowed);
  return AsArrays(ValueOrRaise(self.Call([&](VectorIndex& index) { return index.Search(vectors, k, filter); })), k);
}

Found Probe(const ListsHandle& self, const ArrayOf<float>& queries, int32_t k,
            const std::optional<ArrayOf<uint8_t>>& allowed, int32_t probes, std::vector<std::vector<int32_t>> terms) {
  const std::span<const float> vectors = Rows(queries, "queries", self.dimension());
  const IdFilter filter = Allowed(allowed);
  const index::InvertedQuery query{probes, std::move(terms)};
  return AsArrays(
      ValueOrRaise(self.CallLists([&](NeuralInvertedIndex& of) { return of.Probe(vectors, k, filter, query); })), k);
}

void SetRouter(const ListsHandle& self, const ArrayOf<int64_t>& lists, const ArrayOf<float>& vectors,
               const ArrayOf<float>& biases) {
  const NeuralInvertedIndex::Router router = RouterOf(lists, vectors, biases);
  RaiseIfError(self.CallLists([&](NeuralInvertedIndex& of) { return of.SetRouter(router); }));
}

void BindDnii(py::module_& module) {
  py::class_<ListsHandle, IndexHandle>(module, "NeuralInvertedIndex",
                                       R"(cpp/index/include/everlong/index/neural_inverted_index.h.

Thread-safe as every VectorIndex. set_router and set_terms count as writers.)")
      .def(py::init(&Dnii), py::arg("dimension"), py::arg("metric"), py::arg("list_vectors"), py::arg("probes"),
           py::arg("rescored"), py::arg("exact_below"))
      .def_static(
          "load",
          [](const std::filesystem::path& file) { return Loaded<ListsHandle>(index::LoadNeuralInvertedIndex, file); },
          py::arg("file"))
      .def("probe", &Probe, py::arg("queries"), py::arg("k"), py::arg("allowed"), py::arg("probes"), py::arg("terms"))
      .def(
          "lists",
          [](const ListsHandle& self) {
            const auto lists = self.CallLists([](NeuralInvertedIndex& of) { return of.lists(); });
            return py::make_tuple(ToArray(lists.ids), Matrix(lists.centroids, self.dimension()), ToArray(lists.sizes));
          },
          "Return ids, centroids [lists, dimension] and sizes.")
      .def(
          "lists_of",
          [](const ListsHandle& self, const ArrayOf<int64_t>& ids) {
            const auto view = View<int64_t>(ids, "ids");
            return ToArray(self.CallLists([&](NeuralInvertedIndex& of) { return of.ListsOf(view); }));
          },
          py::arg("ids"))
      .def(
          "router",
          [](const ListsHandle& self) {
            const auto router = self.CallLists([](NeuralInvertedIndex& of) { return of.router(); });
            return py::make_tuple(ToArray(router.lists), Matrix(router.vectors, self.dimension()),
                                  ToArray(router.biases));
          },
          "Return ids of lists, vectors [lists, dimension] and biases.")
      .def("set_router", &SetRouter, py::arg("lists"), py::arg("vectors"), py::arg("biases"))
      .def(
          "set_terms",
          [](const ListsHandle& self, int64_t id, const std::vector<int32_t>& terms) {
            RaiseIfError(self.CallLists([&](NeuralInvertedIndex& of) { return of.SetTerms(id, terms); }));
          },
          py::arg("id"), py::arg("terms"));
}

}  // namespace

NeuralInvertedIndex::Router RouterOf(const py::object& lists, const py::object& vectors, const py::object& biases) {
  const std::span<const int64_t> of = View<int64_t>(lists, "lists");
  const std::span<const float> rows = View<float>(vectors, "vectors", 2);
  const std::span<const float> numbers = View<float>(biases, "biases");
  return {{of.begin(), of.end()}, {rows.begin(), rows.end()}, {numbers.begin(), numbers.end()}};
}

void BindIndex(py::module_& module) {
  py::class_<IndexHandle>(
      module, "VectorIndex",
      R"(cpp/index/include/everlong/index/vector_index.h; python/everlong/retrieval/index.py is its Python API.

Thread-safe: searches run beside each other and beside one writer. add and remove take turns.)")
      .def_static("flat", &Flat, py::arg("dimension"), py::arg("metric"), py::arg("storage"))
      .def_static("hnsw", &Hnsw, py::arg("dimension"), py::arg("metric"), py::arg("links"), py::arg("ef_construction"),
                  py::arg("ef"), py::arg("exact_below"))
      .def_static(
          "load_flat",
          [](const std::filesystem::path& file) { return Loaded<IndexHandle>(index::LoadFlatIndex, file); },
          py::arg("file"))
      .def_static(
          "load_hnsw",
          [](const std::filesystem::path& file) { return Loaded<IndexHandle>(index::LoadHnswIndex, file); },
          py::arg("file"))
      .def(
          "add",
          [](const IndexHandle& self, const ArrayOf<int64_t>& ids, const ArrayOf<float>& vectors) {
            const auto id_view = View<int64_t>(ids, "ids");
            const auto vector_view = Rows(vectors, "vectors", self.dimension());
            RaiseIfError(self.Call([&](VectorIndex& index) { return index.Add(id_view, vector_view); }));
          },
          py::arg("ids"), py::arg("vectors"))
      .def(
          "remove",
          [](const IndexHandle& self, const ArrayOf<int64_t>& ids) {
            const auto id_view = View<int64_t>(ids, "ids");
            return self.Call([&](VectorIndex& index) { return index.Remove(id_view); });
          },
          py::arg("ids"))
      .def("search", &Search, py::arg("queries"), py::arg("k"), py::arg("allowed") = py::none(),
           "Return ids and scores [n, k]; where there are fewer hits, -1 and minus infinity.")
      .def(
          "save",
          [](const IndexHandle& self, const std::filesystem::path& file) {
            RaiseIfError(self.Call([&](VectorIndex& index) { return index.Save(file); }));
          },
          py::arg("file"))
      .def_property_readonly("dimension", &IndexHandle::dimension)
      .def_property_readonly(
          "size", [](const IndexHandle& self) { return self.Call([](VectorIndex& index) { return index.size(); }); })
      .def_property_readonly("nbytes", [](const IndexHandle& self) {
        return self.Call([](VectorIndex& index) { return index.bytes(); });
      });
  BindDnii(module);
}

}  // namespace everlong::bindings
