// memory.upkeep: what keeps a memory whole, small and safe elsewhere (everlong/os/upkeep.h).
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "core_bindings.h"
#include "core_memory.h"
#include "everlong/store/memory_store.h"

namespace everlong::bindings {
namespace py = pybind11;
using store::Damage;
using store::StoreStats;
using store::VerifyReport;
using UpkeepHandle = ObjectHandle<os::Upkeep>;

void BindUpkeep(py::module_& module) {
  py::class_<StoreStats>(module, "StoreStats")
      .def_readonly("blocks", &StoreStats::blocks)
      .def_readonly("pages", &StoreStats::pages)
      .def_readonly("tokens", &StoreStats::tokens)
      .def_readonly("payload_bytes", &StoreStats::payload_bytes)
      .def_readonly("tensor_bytes", &StoreStats::tensor_bytes, "Bytes of the blocks' tensors, by their names.")
      .def_readonly("graph_nodes", &StoreStats::graph_nodes)
      .def_readonly("graph_edges", &StoreStats::graph_edges)
      .def_readonly("disk_bytes", &StoreStats::disk_bytes)
      .def_readonly("dead_bytes", &StoreStats::dead_bytes)
      .def_readonly("host_bytes", &StoreStats::host_bytes)
      .def_readonly("catalog_bytes", &StoreStats::catalog_bytes)
      .def_readonly("index_bytes", &StoreStats::index_bytes);

  py::class_<Damage>(module, "Damage").def_readonly("block", &Damage::block).def_readonly("what", &Damage::what);

  py::class_<VerifyReport>(module, "VerifyReport")
      .def_readonly("blocks", &VerifyReport::blocks)
      .def_readonly("records", &VerifyReport::records)
      .def_readonly("bytes", &VerifyReport::bytes)
      .def_readonly("damage", &VerifyReport::damage)
      .def_readonly("dropped", &VerifyReport::dropped);

  py::class_<UpkeepHandle>(module, "Upkeep", R"(The upkeep of a memory: cpp/os/include/everlong/os/upkeep.h.

Thread-safe: each takes a turn with every change of the memory, but verify and export only to flush it and to repair.
Searches go on, but for what compact and a repair index anew.)")
      .def("flush", Method(&os::Upkeep::Flush),
           R"(Return once every block that was appended before is durable.

It waits for the commit that is under way and the one behind it. Blocks of several threads that are waiting then share
that one commit. A block that was lost is the error of every thread that waited for it.)")
      .def("compact", Method(&os::Upkeep::Compact))
      .def("recode", Method(&os::Upkeep::Recode), py::arg("block"), py::arg("codec"),
           "Code a block's payload anew, durable on return. Return the bytes that it had; 0 where it is coded so.")
      .def(
          "put_transform",
          [](const UpkeepHandle& self, const py::bytes& file) {
            const std::string_view text = file;
            const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
            return OrRaise(self.Call([&](os::Upkeep& of) { return of.PutTransform(bytes); }));
          },
          py::arg("file"), "Keep the tables of a transform with the memory. Return the name of their codec.")
      .def("verify", Method(&os::Upkeep::Verify), py::arg("repair") = false)
      .def("hear_forgettings", Method(&os::Upkeep::HearForgettings),
           "Where another process forgot blocks of a memory that is open for reading, bring the index to what is left.")
      .def("fork", Method(&os::Upkeep::Fork), py::arg("folder"))
      .def("export_file", Method(&os::Upkeep::Export), py::arg("file"))
      .def("stats", Method(&os::Upkeep::Stats));
}

}  // namespace everlong::bindings
