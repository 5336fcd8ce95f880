#include <pybind11/pybind11.h>

#include "core_bindings.h"
#include "everlong/store/manifest.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = R"(The native core: memories (store + index), the Memory OS and vector indexes.

Arrays are numpy, C-contiguous. Nothing here knows torch. Failures are the exceptions of `everlong.errors`. Long calls
release the GIL.

Threads: any thread may use any object. What else runs beside a call is said at the object; an object that says nothing
is a value, whose calls keep the GIL. Nobody may write to an array while a call has it. Objects whose calls release the
GIL belong to the process that made them: in a fork of it they raise ClosedError. Values go on there.)";
  module.attr("FORMAT_VERSION") = everlong::store::kFormatVersion;
  everlong::bindings::BindKinds(module);
  // A class comes before those whose signatures name it: only then do they name it as Python does.
  everlong::bindings::BindManifest(module);
  everlong::bindings::BindTransfer(module);
  everlong::bindings::BindBlocks(module);
  everlong::bindings::BindGraph(module);
  everlong::bindings::BindWalker(module);
  everlong::bindings::BindTagTree(module);
  everlong::bindings::BindIndex(module);
  everlong::bindings::BindSearch(module);
  everlong::bindings::BindIndexes(module);
  everlong::bindings::BindBlockGraph(module);
  everlong::bindings::BindUpkeep(module);
  everlong::bindings::BindMemory(module);
  everlong::bindings::BindMemoryOs(module);
  everlong::bindings::BindFiles(module);
  everlong::bindings::BindGguf(module);
}
