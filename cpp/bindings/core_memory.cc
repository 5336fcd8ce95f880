// A memory: its beginning and end, its manifest and its files.
#include "core_memory.h"

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "core_bindings.h"
#include "everlong/base/control_groups.h"
#include "everlong/store/free_ram.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;

store::StoreOptions Options(std::optional<int64_t> host_bytes) {
  store::StoreOptions options;
  options.host_bytes = host_bytes;
  return options;
}

using std::filesystem::path;

// A copy of the manifest: another thread may change the object meanwhile.
std::unique_ptr<MemoryHandle> Create(const std::optional<path>& folder, store::Manifest manifest,
                                     std::optional<int64_t> host_bytes) {
  auto memory = Unlocked([&] { return os::Memory::Create(folder, manifest, Options(host_bytes)); });
  return std::make_unique<MemoryHandle>(ValueOrRaise(std::move(memory)));
}

std::unique_ptr<MemoryHandle> Open(const path& folder, bool read_only, std::optional<int64_t> host_bytes) {
  auto memory = Unlocked([&] { return os::Memory::Open(folder, read_only, Options(host_bytes)); });
  return std::make_unique<MemoryHandle>(ValueOrRaise(std::move(memory)));
}

std::unique_ptr<MemoryHandle> ImportFile(const path& file, const std::optional<path>& folder,
                                         std::optional<int64_t> host_bytes) {
  auto memory = Unlocked([&] { return os::Memory::Import(file, folder, Options(host_bytes)); });
  return std::make_unique<MemoryHandle>(ValueOrRaise(std::move(memory)));
}

// It opens only the store, because damaged payload may not give its indexes.
store::VerifyReport Repair(const path& folder) {
  return ValueOrRaise(Unlocked([&]() -> Result<store::VerifyReport> {
    EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<store::MemoryStore> opened,
                              store::MemoryStore::Open(folder, false, Options(0)));
    return opened->Verify(true);
  }));
}

void PutFile(const MemoryHandle& self, const std::string& name, const py::bytes& data) {
  const std::string_view text = data;
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  RaiseIfError(self.Call([&](os::Memory& memory) { return memory.PutFile(name, bytes); }));
}

// Return the bytes of a file; None when there is no such file.
std::optional<py::bytes> File(const MemoryHandle& self, const std::string& name) {
  const Result<std::vector<std::byte>> bytes = self.Call([&](os::Memory& memory) { return memory.File(name); });
  if (bytes.status().code() == StatusCode::kNotFound) return std::nullopt;
  RaiseIfError(bytes.status());
  return py::bytes(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

int64_t PageBytes(const MemoryHandle& self, int32_t tokens, const std::optional<std::string>& codec) {
  kv::PayloadLayout layout = self.Call([](os::Memory& memory) { return memory.layout(); });
  if (tokens < 1 || tokens > layout.page_tokens) {
    throw py::value_error("tokens: " + std::to_string(tokens) + ", expected 1 to " +
                          std::to_string(layout.page_tokens));
  }
  if (codec) layout.codec = ValueOrRaise(kv::ParseCodec(*codec));
  return layout.PageBytes(tokens);
}

}  // namespace

void BindMemory(py::module_& module) {
  module.def(
      "group_cpus", [] { return GroupCpus("/"); },
      "Return the CPUs whose time the control groups let this process have, rounded up; None without a limit.");
  module.def(
      "free_memory_bytes", [] { return store::FreeRamBytes(); },
      "Return the RAM that this process may still take, control groups counted; 0 when the system does not say.");
  py::class_<MemoryHandle>(module, "Memory", R"(One memory: cpp/os/include/everlong/os/memory.h.

Thread-safe, as its objects say. A call that runs while another thread closes the memory ends on it.)")
      .def_static("create", &Create, py::arg("folder"), py::arg("manifest"), py::arg("host_bytes") = py::none())
      .def_static("open", &Open, py::arg("folder"), py::arg("read_only") = false, py::arg("host_bytes") = py::none())
      .def_static("import_file", &ImportFile, py::arg("file"), py::arg("folder"), py::arg("host_bytes") = py::none())
      .def_static("repair", &Repair, py::arg("folder"))
      .def_readonly("blocks", &MemoryHandle::blocks)
      .def_readonly("search", &MemoryHandle::search)
      .def_readonly("index", &MemoryHandle::index)
      .def_readonly("graph", &MemoryHandle::graph)
      .def_readonly("upkeep", &MemoryHandle::upkeep)
      .def("page_bytes", &PageBytes, py::arg("tokens"), py::arg("codec") = py::none())
      .def("manifest",
           [](const MemoryHandle& self) { return self.Call([](os::Memory& memory) { return memory.manifest(); }); })
      .def(
          "set_attribute",
          [](const MemoryHandle& self, const std::string& key, const std::string& value) {
            RaiseIfError(self.Call([&](os::Memory& memory) { return memory.SetAttribute(key, value); }));
          },
          py::arg("key"), py::arg("value"))
      .def("put_file", &PutFile, py::arg("name"), py::arg("data"),
           "Keep bytes that belong to the memory as a whole, in place of what is there. Forks and exports have them.")
      .def("file", &File, py::arg("name"))
      .def_property_readonly(
          "read_only",
          [](const MemoryHandle& self) { return self.Call([](os::Memory& memory) { return memory.read_only(); }); })
      .def_property_readonly(
          "is_gone",
          [](const MemoryHandle& self) { return self.Call([](os::Memory& memory) { return memory.is_gone(); }); },
          "Whether its folder was removed or replaced since it was opened for writing.")
      .def(
          "forgettings",
          [](const MemoryHandle& self) {
            return ValueOrRaise(self.Call([](os::Memory& memory) { return memory.Forgettings(); }));
          },
          "Return how often blocks were forgotten or dropped so far, also by another process.")
      .def("close", &MemoryHandle::Close,
           "Release lock and files. Every later call raises ClosedError. Closing twice does nothing.");
}

}  // namespace everlong::bindings
