#include <pybind11/pybind11.h>

#include "core_bindings.h"
#include "everlong/store/manifest.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The native core: memories (store + index), the Memory OS and vector indexes.";
  module.attr("FORMAT_VERSION") = everlong::store::kFormatVersion;
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
}
