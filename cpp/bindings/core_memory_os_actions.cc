#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core_memory_os.h"
#include "everlong/base/check.h"
#include "everlong/os/memory_os.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::ArchiveAction;
using os::EvictAction;
using os::RecallAction;
using os::TrimAction;

void BindEvict(py::module_& module) {
  py::class_<os::Keep>(
      module, "Keep",
      "What stays of tokens that leave the frame: each of them as an anchor, or their mean as one tombstone.")
      .def_readonly("tombstone", &os::Keep::tombstone)
      .def_property_readonly("begin", [](const os::Keep& self) { return self.span.begin; })
      .def_property_readonly("end", [](const os::Keep& self) { return self.span.end; })
      .def_property_readonly(
          "dropped", [](const os::Keep& self) { return self.dropped.size(); },
          "Anchor slots that leave the zone first, the oldest.")
      .def_readonly(
          "merged", &os::Keep::merged,
          "The tombstone that then takes in the next one, each weighted by the tokens it stands for; -1: none.")
      .def_readonly("merged_tokens", &os::Keep::merged_tokens)
      .def_readonly("next_tokens", &os::Keep::next_tokens);
  py::class_<EvictAction>(module, "Evict")
      .def_readonly("tokens", &EvictAction::tokens)
      .def_readonly("delta", &EvictAction::delta)
      .def_readonly("keeps", &EvictAction::keeps, "What stays of them. It is done first, in order.")
      .def_readonly("anchor_positions", &EvictAction::anchor_positions,
                    "Frame positions of the anchor zone's slots, tombstones first.");
}

}  // namespace

const char* TriggerName(os::RecallTrigger trigger) {
  switch (trigger) {
    case os::RecallTrigger::kPrompt:
      return "prompt";
    case os::RecallTrigger::kRecent:
      return "recent";
    case os::RecallTrigger::kPeriodic:
      return "periodic";
    case os::RecallTrigger::kSignal:
      return "signal";
    case os::RecallTrigger::kTombstone:
      return "tombstone";
  }
  EVERLONG_CHECK(false);
}

void BindMemoryOsActions(py::module_& module) {
  py::class_<ArchiveAction>(module, "Archive")
      .def_property_readonly("begin", [](const ArchiveAction& self) { return self.span.begin; })
      .def_property_readonly("end", [](const ArchiveAction& self) { return self.span.end; })
      .def_readonly("sink_tokens", &ArchiveAction::sink_tokens)
      .def_property_readonly(
          "role", [](const ArchiveAction& self) { return NameOf(self.role); },
          "Role of all its tokens: \"read\", \"asked\" or \"said\".");
  py::class_<TrimAction>(
      module, "Trim",
      "A request for the best tokens of a closed block. choose() answers it, before an Evict is executed.")
      .def_property_readonly("begin", [](const TrimAction& self) { return self.block.begin; })
      .def_property_readonly("end", [](const TrimAction& self) { return self.block.end; })
      .def_readonly("tokens", &TrimAction::tokens, "How many are wanted, at least 1.")
      .def_property_readonly(
          "runs",
          [](const TrimAction& self) {
            std::vector<std::pair<int64_t, int64_t>> runs;
            for (const TokenSpan& run : self.from) runs.emplace_back(run.begin, run.end);
            return runs;
          },
          "Spans of the stream that may be chosen from, ascending.");
  BindEvict(module);
  py::class_<RecallAction>(module, "Recall")
      .def_property_readonly(
          "trigger", [](const RecallAction& self) { return TriggerName(self.trigger); },
          "One of \"prompt\", \"recent\", \"periodic\", \"signal\" and \"tombstone\".")
      .def_readonly("blocks", &RecallAction::blocks)
      .def_property_readonly(
          "span", [](const RecallAction& self) { return std::pair(self.span.begin, self.span.end); },
          "For \"tombstone\": the tokens of the stream that it stands for.");
}

}  // namespace everlong::bindings
