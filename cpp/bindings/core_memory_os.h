// The parts of the Memory OS's binding, and a name that they share.
#pragma once

#include <pybind11/pybind11.h>

#include "everlong/os/memory_os.h"

namespace everlong::bindings {

void BindMemoryOsConfig(pybind11::module_& module);
void BindMemoryOsActions(pybind11::module_& module);
const char* TriggerName(os::RecallTrigger trigger);

}  // namespace everlong::bindings
