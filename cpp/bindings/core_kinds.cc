// What kinds there are, as tables of the core: the codecs of a payload and the parts of an index.
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core_bindings.h"
#include "everlong/index/part_kinds.h"
#include "everlong/kv/payload.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using index::PartKind;
using kv::Codec;

int32_t ChannelBytes(Codec codec) {
  if (!kv::HasScales(codec)) return 0;
  return kv::FormOf(codec).centred ? 6 : 4;
}

std::vector<std::string_view> Inputs(const PartKind& kind) {
  std::vector<std::string_view> inputs = kind.more_inputs;
  if (!kind.input.empty()) inputs.insert(inputs.begin(), kind.input);
  return inputs;
}

}  // namespace

void BindKinds(py::module_& module) {
  py::class_<Codec>(module, "Codec", "What decides the bytes of a codec: cpp/kv/include/everlong/kv/codec.h.")
      .def_property_readonly("name", [](Codec self) { return kv::CodecName(self); })
      .def_property_readonly(
          "key_bits", [](Codec self) { return kv::FormOf(self).key_bits; }, "Bits of a code.")
      .def_property_readonly("value_bits", [](Codec self) { return kv::FormOf(self).value_bits; })
      .def_property_readonly("channel_bytes", &ChannelBytes,
                             "What a channel of a page's keys has beside its codes; 0: nor have values any more.")
      .def_property_readonly(
          "group", [](Codec self) { return kv::HasSteps(self) ? std::optional(kv::kStepsGroup) : std::nullopt; },
          "Numbers of a token's values that share four bytes; None: all of them.");
  module.def("codecs", &kv::AllCodecs);

  py::class_<PartKind>(module, "IndexKind",
                       "A kind of part of the index: cpp/index/include/everlong/index/part_kinds.h.")
      .def_readonly("name", &PartKind::name)
      .def_property_readonly("inputs", &Inputs,
                             "What it takes of a question (Searcher.find); without the first it is not asked.")
      .def_readonly("from_model", &PartKind::from_model, "Whether text alone does not give what it compares.")
      .def_readonly("from_pack", &PartKind::from_pack, "Whether a trained pack makes its vectors.");
  module.def("index_kinds", [] {
    std::vector<PartKind> kinds;
    for (const index::IndexPart part : index::AllIndexParts()) kinds.push_back(index::KindOf(part));
    return kinds;
  });
}

}  // namespace everlong::bindings
