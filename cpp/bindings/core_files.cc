// Files in a folder that came from anybody, for what is read and written outside of a memory: packs.
#include <pybind11/pybind11.h>
#include <pybind11/stl/filesystem.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core_bindings.h"
#include "core_errors.h"
#include "core_gil.h"
#include "everlong/base/file.h"

namespace py = pybind11;

namespace everlong::bindings {
namespace {

// Return a file of an opened folder, and of none below or above it.
Result<FilePath> FileIn(const std::filesystem::path& folder, const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != name.npos) {
    return InvalidArgumentError("name of a file is \"" + name + "\", expected one that lies in the folder itself");
  }
  EVERLONG_ASSIGN_OR_RETURN(const FilePath opened, FilePath::Open(folder));
  return opened / name;
}

py::bytes ReadFile(const std::filesystem::path& folder, const std::string& name, int64_t most,
                   bool may_have_other_names) {
  const auto bytes = ValueOrRaise(Unlocked([&]() -> Result<std::vector<std::byte>> {
    EVERLONG_ASSIGN_OR_RETURN(const FilePath file, FileIn(folder, name));
    return ReadWhole(file, most, may_have_other_names ? Names::kAny : Names::kOne);
  }));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool HasFile(const std::filesystem::path& folder, const std::string& name) {
  const Result<FilePath> file = FileIn(folder, name);
  if (file.status().code() == StatusCode::kInvalidArgument) Raise(file.status());
  return file.ok() && Exists(*file);
}

void ReplaceFileIn(const std::filesystem::path& folder, const std::string& name, const py::bytes& data) {
  const std::string_view text = data;
  RaiseIfError(Unlocked([&]() -> Status {
    EVERLONG_ASSIGN_OR_RETURN(const FilePath file, FileIn(folder, name));
    return ReplaceFile(file, file + ".new", std::as_bytes(std::span(text)));
  }));
}

}  // namespace

void BindFiles(py::module_& module) {
  module.def("read_file", &ReadFile, py::arg("folder"), py::arg("name"), py::arg("most"),
             py::arg("may_have_other_names") = false,
             "Return a file of a folder: no link is followed. CorruptMemoryError for more than `most` bytes.");
  module.def("has_file", &HasFile, py::arg("folder"), py::arg("name"),
             "Return whether a folder has anything of that name, a link too.");
  module.def("replace_file", &ReplaceFileIn, py::arg("folder"), py::arg("name"), py::arg("data"),
             "Replace a file of a folder as a whole, durably, or leave what was there. No link is followed.");
}

}  // namespace everlong::bindings
