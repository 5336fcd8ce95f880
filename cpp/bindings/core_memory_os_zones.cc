#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "core_memory_os.h"
#include "everlong/os/memory_os.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::MemoryOs;

// Return plain numbers, as JSON keeps them. Checkpoints have tombstones and anchors as one zone.
ZoneDict AnchorZoneDict(const os::Residency& frame) {
  const os::ZoneRows anchors = frame.zone("anchors").Save();
  const os::ZoneRows stones = frame.zone("tombstones").Save();  // before a new list runs Python, and other threads
  py::list spans;
  for (size_t i = 1; i < anchors.size(); ++i) spans.append(py::make_tuple(anchors[i][0], anchors[i][1]));
  py::list tombstones;
  for (const auto& row : stones) tombstones.append(py::make_tuple(row[0], row[1], row[2]));
  ZoneDict out;
  out["tombstones"] = tombstones;
  out["anchors"] = spans;
  out["topics"] = anchors[0];
  return out;
}

AnyDict KeptDict(const os::Residency& frame) {
  const os::ZoneRows rows = frame.zone("kept").Save();
  py::list blocks;
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::vector<int64_t> tokens(rows[i].begin() + 3, rows[i].end());
    blocks.append(py::make_tuple(rows[i][0], rows[i][1], rows[i][2], tokens));
  }
  AnyDict out;
  out["until"] = rows[0][0];
  out["blocks"] = blocks;
  return out;
}

}  // namespace

void AddAnchorZone(const ZoneDict& zone, os::SavedZones& saved) {
  saved["tombstones"] = zone["tombstones"].cast<os::ZoneRows>();
  os::ZoneRows& anchors = saved["anchors"] = zone["anchors"].cast<os::ZoneRows>();
  anchors.insert(anchors.begin(), zone["topics"].cast<std::vector<int64_t>>());
}

void AddKept(const AnyDict& zone, os::SavedZones& saved) {
  os::ZoneRows& rows = saved["kept"];
  rows.push_back({zone["until"].cast<int64_t>()});
  using Blocks = std::vector<std::tuple<int64_t, int64_t, int32_t, std::vector<int64_t>>>;
  for (const auto& [begin, end, rung, tokens] : zone["blocks"].cast<Blocks>()) {
    rows.push_back({begin, end, rung});
    rows.back().insert(rows.back().end(), tokens.begin(), tokens.end());
  }
}

// The zones of what left the frame: anchors, tombstones, and kept tokens.
void BindZones(py::class_<MemoryOs>& type) {
  type.def_property_readonly(
          "anchor_zone", [](const MemoryOs& self) { return AnchorZoneDict(self.frame()); },
          "tombstones: (begin, end, tokens); anchors: (begin, end); topics: first tokens of those not all kept yet.")
      .def_property_readonly(
          "anchor_positions", [](const MemoryOs& self) { return self.frame().CopyPositions(); },
          "Frame positions of the anchor zone's slots, tombstones first.")
      .def_property_readonly(
          "kept", [](const MemoryOs& self) { return KeptDict(self.frame()); },
          "until: chosen tokens before it stand in the zone; blocks: (begin, end, rung, tokens, the best first).")
      .def_property_readonly(
          "kept_held", [](const MemoryOs& self) { return self.frame().zone("kept").Held(); },
          "Tokens of the stream that the kept zone holds, ascending.")
      .def_property_readonly(
          "kept_shown", [](const MemoryOs& self) { return self.frame().zone("kept").Shown(); },
          "Those of them that no recall of their page hides.")
      .def_property_readonly(
          "kept_position", [](const MemoryOs& self) { return self.frame().PositionOf("kept"); },
          "Frame position of the first that is shown. The others follow.");
}

}  // namespace everlong::bindings
