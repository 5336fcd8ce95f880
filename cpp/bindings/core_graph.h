// The Python names of the graph's settings, and its results as Python objects.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "everlong/graph/gardener.h"
#include "everlong/graph/tag_tree.h"
#include "everlong/graph/walker.h"
#include "everlong/os/search.h"

namespace everlong::bindings {

// Return the options. ValueError for options out of range.
graph::GardenerOptions GardenerOptionsOf(int32_t dimension, int32_t levels, double radius, double share, double growth,
                                         int64_t most_members, int64_t looked_at, uint64_t seed);

// A walk for a search to make. It keeps its policy alive.
struct WalkHandle {
  std::shared_ptr<const graph::WalkerPolicy> policy;
  os::WalkRequest request;
};

// (year, month, day, session, blocks) of each bucket.
using BucketTuples = pybind11::typing::List<
    pybind11::typing::Tuple<pybind11::int_, pybind11::int_, pybind11::int_, pybind11::int_, pybind11::int_>>;
BucketTuples BucketsOf(const std::vector<graph::TagTree::Bucket>& buckets);

}  // namespace everlong::bindings
