// The parts of the Memory OS's binding, and names that they share.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include "everlong/os/memory_os.h"

namespace everlong::bindings {

using AnyDict = pybind11::typing::Dict<pybind11::str, pybind11::object>;
using ZoneDict = pybind11::typing::Dict<pybind11::str, pybind11::typing::List<pybind11::object>>;

void BindMemoryOsConfig(pybind11::module_& module);
void BindMemoryOsActions(pybind11::module_& module);
void BindOffers(pybind11::module_& module);
void BindZones(pybind11::class_<os::MemoryOs>& type);

const char* TriggerName(os::RecallTrigger trigger);

// Add what a checkpoint has of zones to what Resume takes over.
void AddAnchorZone(const ZoneDict& zone, os::SavedZones& saved);
void AddKept(const AnyDict& zone, os::SavedZones& saved);

}  // namespace everlong::bindings
