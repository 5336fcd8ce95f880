// What the graph's settings are called in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "everlong/graph/gardener.h"
#include "everlong/graph/tag_tree.h"
#include "everlong/graph/walker.h"
#include "everlong/os/memory.h"

namespace everlong::bindings {

// ValueError for what there cannot be.
graph::GardenerOptions GardenerOptionsOf(int32_t dimension, int32_t levels, double radius, double share, double growth,
                                         int64_t most_members, int64_t looked_at, uint64_t seed);

// A walk that a search is to make; keeps its policy.
struct WalkHandle {
  std::shared_ptr<const graph::WalkerPolicy> policy;
  os::WalkRequest request;
};

// (year, month, day, session, blocks) of each.
pybind11::list BucketsOf(const std::vector<graph::TagTree::Bucket>& buckets);

}  // namespace everlong::bindings
