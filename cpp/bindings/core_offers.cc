#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core_memory_os.h"
#include "everlong/os/offer.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::Offer;
using os::OfferKind;
using os::Placement;

OfferKind ParseKind(const std::string& name) {
  if (name == "page") return OfferKind::kPage;
  if (name == "chosen") return OfferKind::kChosen;
  if (name == "details") return OfferKind::kDetails;
  if (name == "conversation") return OfferKind::kConversation;
  throw py::value_error("kind: \"" + name + "\", expected \"page\", \"chosen\", \"details\" or \"conversation\"");
}

Offer Make(const PageRef& page, const std::string& kind, std::vector<int64_t> tokens, int32_t slots, std::string by,
           std::optional<float> sure) {
  const OfferKind of_kind = ParseKind(kind);
  if (of_kind == OfferKind::kDetails && slots < 1) {
    throw py::value_error("details: " + std::to_string(slots) + " slots, expected at least 1");
  }
  std::ranges::sort(tokens);
  return {of_kind, page, std::move(tokens), slots, std::move(by), sure};
}

}  // namespace

void BindOffers(py::module_& module) {
  py::class_<Offer>(module, "Offer",
                    R"(Something that may come back into the frame: cpp/os/include/everlong/os/offer.h.

- kind: "page"; "chosen": of the page only `tokens` of its stream; "details": the page names a whole block, which
  comes as `slots` Detail Tokens, ValueError below 1; "conversation": a page of it, whole.
- by, sure: who offers it, and the probability that it is wanted, for people.)")
      .def(py::init(&Make), py::arg("page"), py::arg("kind") = "page", py::arg("tokens") = std::vector<int64_t>(),
           py::arg("slots") = 0, py::arg("by") = "", py::arg("sure") = py::none())
      .def_readonly("page", &Offer::page)
      .def_readonly("tokens", &Offer::tokens)
      .def_readonly("slots", &Offer::slots)
      .def_readonly("by", &Offer::by)
      .def_readonly("sure", &Offer::sure);
  py::class_<Placement>(module, "Placement")
      .def_readonly("page", &Placement::page)
      .def_readonly("first_token", &Placement::first_token)
      .def_readonly("tokens", &Placement::tokens)
      .def_readonly("position", &Placement::position)
      .def_readonly("details", &Placement::details,
                    "Whether these are slots of Detail Tokens. Then `page` is all of the block.");
}

}  // namespace everlong::bindings
