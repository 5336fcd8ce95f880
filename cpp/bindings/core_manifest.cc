#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>

#include "core_bindings.h"
#include "core_errors.h"
#include "everlong/store/manifest.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using store::Fingerprint;
using store::Geometry;
using store::Manifest;

// Bind a field of one of the manifest's parts as a plain attribute.
template <class Part, class Field>
void BindField(py::class_<Manifest>& type, const char* name, Part Manifest::* part, Field Part::* field) {
  type.def_property(
      name, [part, field](const Manifest& self) { return (self.*part).*field; },
      [part, field](Manifest& self, Field value) { (self.*part).*field = std::move(value); });
}

}  // namespace

void BindManifest(py::module_& module) {
  py::class_<Manifest> type(
      module, "Manifest",
      "What a memory depends on. `attributes` returns a copy: assign a whole dict, or use Memory.set_attribute.");
  type.def(py::init([](std::string weights, std::string rope, std::string tokenizer, int32_t layers, int32_t kv_heads,
                       int32_t head_dim, int32_t page_tokens, std::string codec,
                       std::map<std::string, std::string> attributes) {
             Manifest manifest;
             manifest.fingerprint = {std::move(weights), std::move(rope), std::move(tokenizer)};
             manifest.geometry = {layers, kv_heads, head_dim, page_tokens, std::move(codec)};
             manifest.attributes = std::move(attributes);
             return manifest;
           }),
           py::kw_only(), py::arg("weights"), py::arg("rope"), py::arg("tokenizer"), py::arg("layers"),
           py::arg("kv_heads"), py::arg("head_dim"), py::arg("page_tokens"), py::arg("codec"),
           py::arg("attributes") = std::map<std::string, std::string>{});
  BindField(type, "weights", &Manifest::fingerprint, &Fingerprint::weights);
  BindField(type, "rope", &Manifest::fingerprint, &Fingerprint::rope);
  BindField(type, "tokenizer", &Manifest::fingerprint, &Fingerprint::tokenizer);
  BindField(type, "layers", &Manifest::geometry, &Geometry::layers);
  BindField(type, "kv_heads", &Manifest::geometry, &Geometry::kv_heads);
  BindField(type, "head_dim", &Manifest::geometry, &Geometry::head_dim);
  BindField(type, "page_tokens", &Manifest::geometry, &Geometry::page_tokens);
  BindField(type, "codec", &Manifest::geometry, &Geometry::codec);
  type.def_property_readonly(
      "text_alone", [](const Manifest& self) { return store::TextAlone(self.geometry); },
      "Whether blocks have token ids and no payload: layers is 0.");
  type.def_readwrite("attributes", &Manifest::attributes);

  module.def(
      "check_fingerprint",
      [](const Manifest& manifest, std::string weights, std::string rope, std::string tokenizer) {
        RaiseIfError(store::CheckFingerprint(manifest, {std::move(weights), std::move(rope), std::move(tokenizer)}));
      },
      py::arg("manifest"), py::kw_only(), py::arg("weights"), py::arg("rope"), py::arg("tokenizer"),
      "Raise ModelMismatchError, which names every field that differs.");
}

}  // namespace everlong::bindings
