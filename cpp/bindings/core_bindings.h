// The parts of the module `everlong._core` (python/everlong/_core.pyi is made from them).
#pragma once

#include <pybind11/pybind11.h>

#include "everlong/index/neural_inverted_index.h"

namespace everlong::bindings {

void BindKinds(pybind11::module_& module);
void BindManifest(pybind11::module_& module);
void BindBlocks(pybind11::module_& module);
void BindGraph(pybind11::module_& module);
void BindWalker(pybind11::module_& module);
void BindTagTree(pybind11::module_& module);
void BindSearch(pybind11::module_& module);
void BindIndexes(pybind11::module_& module);
void BindBlockGraph(pybind11::module_& module);
void BindUpkeep(pybind11::module_& module);
void BindMemory(pybind11::module_& module);
void BindFiles(pybind11::module_& module);
void BindGguf(pybind11::module_& module);
void BindIndex(pybind11::module_& module);
// Make a router of arrays [lists], [lists, dimension] and [lists]. The index checks their sizes.
index::NeuralInvertedIndex::Router RouterOf(const pybind11::object& lists, const pybind11::object& vectors,
                                            const pybind11::object& biases);
void BindMemoryOs(pybind11::module_& module);
void BindTransfer(pybind11::module_& module);

}  // namespace everlong::bindings
