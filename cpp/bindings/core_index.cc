// Vector indexes on their own (everlong/index/vector_index.h).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_errors.h"
#include "core_gil.h"
#include "everlong/index/vector_index.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using index::IdFilter;
using index::Metric;
using index::VectorHits;
using index::VectorIndex;
using index::VectorStorage;

Metric ParseMetric(const std::string& name) {
  if (name == "inner_product") return Metric::kInnerProduct;
  if (name == "cosine") return Metric::kCosine;
  if (name == "l2") return Metric::kL2;
  throw py::value_error("metric: \"" + name + "\", expected \"inner_product\", \"cosine\" or \"l2\"");
}

VectorStorage ParseStorage(const std::string& name) {
  if (name == "fp32") return VectorStorage::kFp32;
  if (name == "bf16") return VectorStorage::kBf16;
  if (name == "int8") return VectorStorage::kInt8;
  if (name == "e4m3") return VectorStorage::kE4M3;
  throw py::value_error("storage: \"" + name + "\", expected \"fp32\", \"bf16\", \"int8\" or \"e4m3\"");
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

std::unique_ptr<VectorIndex> Flat(int32_t dimension, const std::string& metric, const std::string& storage) {
  AtLeast("dimension", dimension, 1);
  return index::MakeFlatIndex({dimension, ParseMetric(metric), ParseStorage(storage)});
}

std::unique_ptr<VectorIndex> Hnsw(int32_t dimension, const std::string& metric, int32_t links, int32_t ef_construction,
                                  int32_t ef, int32_t exact_below) {
  AtLeast("dimension", dimension, 1);
  AtLeast("links", links, 2);
  AtMost("links", links, index::kMostHnswLinks);
  AtLeast("ef_construction", ef_construction, 1);
  AtLeast("ef", ef, 1);
  return index::MakeHnswIndex({dimension, ParseMetric(metric), links, ef_construction, ef, exact_below});
}

// The numbers of an array [n, dimension].
std::span<const float> Rows(const py::object& value, const char* name, int32_t dimension) {
  const std::span<const float> rows = View<float>(value, name, 2);
  const py::ssize_t columns = py::reinterpret_borrow<py::array>(value).shape(1);
  if (columns != dimension) {
    throw py::value_error(std::string(name) + ": rows of " + std::to_string(columns) + " numbers, expected " +
                          std::to_string(dimension));
  }
  return rows;
}

// ids and scores [n, k]; where there are fewer hits, -1 and minus infinity.
std::pair<py::array_t<int64_t>, py::array_t<float>> Search(const VectorIndex& self, const py::object& queries,
                                                           int32_t k, const py::object& allowed) {
  const std::span<const float> vectors = Rows(queries, "queries", self.dimension());
  IdFilter filter;
  if (!allowed.is_none()) filter = IdFilter::Bitmap(View<uint8_t>(allowed, "allowed"));
  const std::vector<VectorHits> hits = ValueOrRaise(Unlocked([&] { return self.Search(vectors, k, filter); }));
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

}  // namespace

void BindIndex(py::module_& module) {
  py::class_<VectorIndex>(module, "VectorIndex")
      .def_static("flat", &Flat, py::arg("dimension"), py::arg("metric"), py::arg("storage"))
      .def_static("hnsw", &Hnsw, py::arg("dimension"), py::arg("metric"), py::arg("links"), py::arg("ef_construction"),
                  py::arg("ef"), py::arg("exact_below"))
      .def_static(
          "load_flat",
          [](const std::string& file) { return ValueOrRaise(Unlocked([&] { return index::LoadFlatIndex(file); })); },
          py::arg("file"))
      .def_static(
          "load_hnsw",
          [](const std::string& file) { return ValueOrRaise(Unlocked([&] { return index::LoadHnswIndex(file); })); },
          py::arg("file"))
      .def(
          "add",
          [](VectorIndex& self, const py::object& ids, const py::object& vectors) {
            const auto id_view = View<int64_t>(ids, "ids");
            const auto vector_view = Rows(vectors, "vectors", self.dimension());
            RaiseIfError(Unlocked([&] { return self.Add(id_view, vector_view); }));
          },
          py::arg("ids"), py::arg("vectors"))
      .def(
          "remove",
          [](VectorIndex& self, const py::object& ids) {
            const auto id_view = View<int64_t>(ids, "ids");
            return Unlocked([&] { return self.Remove(id_view); });
          },
          py::arg("ids"))
      .def("search", &Search, py::arg("queries"), py::arg("k"), py::arg("allowed") = py::none())
      .def(
          "save",
          [](const VectorIndex& self, const std::string& file) {
            RaiseIfError(Unlocked([&] { return self.Save(file); }));
          },
          py::arg("file"))
      .def_property_readonly("dimension", &VectorIndex::dimension)
      .def_property_readonly("size", &VectorIndex::size)
      .def_property_readonly("nbytes", &VectorIndex::bytes);
}

}  // namespace everlong::bindings
