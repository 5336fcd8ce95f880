#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "core_memory_os.h"
#include "everlong/os/memory_os.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::MemoryOsConfig;

// Bind the nested fields as one flat object, each a property.
template <class T>
void BindField(py::class_<MemoryOsConfig>& type, const char* name, T& (*field)(MemoryOsConfig&)) {
  type.def_property(
      name, [field](MemoryOsConfig& self) { return field(self); },
      [field](MemoryOsConfig& self, T value) { field(self) = value; });
}

std::unique_ptr<MemoryOsConfig> ConfigOf(const py::KWArgs<double>& fields) {
  auto config = std::make_unique<MemoryOsConfig>();
  const py::object self = py::cast(config.get(), py::return_value_policy::reference);
  const py::dict known = py::type::of(self).attr("__dict__");
  for (const auto& [name, value] : fields) {
    if (!known.contains(name)) {
      throw py::type_error("MemoryOsConfig has no field \"" + std::string(py::str(name)) + "\"");
    }
    try {
      py::setattr(self, name, value);
    } catch (py::error_already_set& error) {
      py::raise_from(
          error, PyExc_TypeError,
          ("MemoryOsConfig." + std::string(py::str(name)) + ": unfit value " + std::string(py::repr(value))).c_str());
      throw py::error_already_set();
    }
  }
  return config;
}

}  // namespace

void BindMemoryOsConfig(py::module_& module) {
  py::class_<MemoryOsConfig> type(
      module, "MemoryOsConfig",
      "Settings of the Memory OS. Defaults of all fields stand in the C++ headers of the os layer alone.");
  type.def(py::init(&ConfigOf), "Take fields by name. TypeError for a name that is no field.");
  BindField<int64_t>(type, "stream", [](MemoryOsConfig& c) -> int64_t& { return c.stream; });
  BindField<int32_t>(type, "frame_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.frame_tokens; });
  BindField<int32_t>(type, "sink_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.sink_tokens; });
  BindField<int32_t>(type, "recalled_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.residency.recalled_tokens; });
  BindField<int32_t>(type, "rolling_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.rolling_tokens; });
  BindField<int32_t>(type, "evict_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.evict_tokens; });
  BindField<int32_t>(type, "anchor_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.anchor_tokens; });
  BindField<int32_t>(type, "anchors", [](MemoryOsConfig& c) -> int32_t& { return c.residency.anchors; });
  BindField<int32_t>(type, "tombstones", [](MemoryOsConfig& c) -> int32_t& { return c.residency.tombstones; });
  BindField<int32_t>(type, "kept_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.kept.tokens; });
  BindField<int32_t>(type, "kept_share", [](MemoryOsConfig& c) -> int32_t& { return c.residency.kept.share; });
  BindField<int32_t>(type, "kept_rungs", [](MemoryOsConfig& c) -> int32_t& { return c.residency.kept.rungs; });
  BindField<int32_t>(type, "block_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.block_tokens; });
  BindField<int32_t>(type, "least_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.least_tokens; });
  BindField<int32_t>(type, "cooldown_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.cooldown_tokens; });
  BindField<float>(type, "topic_threshold", [](MemoryOsConfig& c) -> float& { return c.segmenter.topic_threshold; });
  BindField<int32_t>(type, "topic_lookahead",
                     [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.topic_lookahead; });
  BindField<bool>(type, "recall_prompt", [](MemoryOsConfig& c) -> bool& { return c.recall.prompt; });
  BindField<bool>(type, "recall_recent", [](MemoryOsConfig& c) -> bool& { return c.recall.recent; });
  BindField<bool>(type, "recall_periodic", [](MemoryOsConfig& c) -> bool& { return c.recall.periodic; });
  BindField<bool>(type, "recall_signal", [](MemoryOsConfig& c) -> bool& { return c.recall.signal; });
  BindField<bool>(type, "recall_tombstone", [](MemoryOsConfig& c) -> bool& { return c.recall.tombstone; });
  BindField<float>(type, "tombstone_threshold",
                   [](MemoryOsConfig& c) -> float& { return c.recall.tombstone_threshold; });
  BindField<int32_t>(type, "periodic_every", [](MemoryOsConfig& c) -> int32_t& { return c.recall.periodic_every; });
  BindField<int32_t>(type, "protect_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.recall.protect_tokens; });
  BindField<int32_t>(type, "prompt_rolling_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.recall.prompt_rolling_tokens; });
  BindField<int32_t>(type, "conversation_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.recall.conversation_tokens; });
  BindField<int32_t>(type, "recent_every", [](MemoryOsConfig& c) -> int32_t& { return c.recall.recent_every; });
  BindField<int32_t>(type, "recent_blocks", [](MemoryOsConfig& c) -> int32_t& { return c.recall.recent_blocks; });
}

}  // namespace everlong::bindings
