// What the graph's settings are called in Python.
#pragma once

#include <cstdint>

#include "everlong/graph/gardener.h"

namespace everlong::bindings {

// ValueError for what there cannot be.
graph::GardenerOptions GardenerOptionsOf(int32_t dimension, int32_t levels, double radius, double share, double growth,
                                         int64_t most_members, int64_t flat_below, uint64_t seed);

}  // namespace everlong::bindings
