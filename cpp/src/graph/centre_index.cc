#include "centre_index.h"

#include <algorithm>
#include <utility>

namespace everlong::graph {
namespace {

// A search looks at a few candidates only, and its caller knows where they really are.
constexpr index::HnswOptions kGraph{
    .metric = index::Metric::kL2, .links = 12, .ef_construction = 64, .ef = 24, .exact_below = 0};

std::unique_ptr<index::VectorIndex> Make(int32_t dimension, bool graph) {
  if (!graph) return index::MakeFlatIndex({.dimension = dimension, .metric = index::Metric::kL2});
  index::HnswOptions options = kGraph;
  options.dimension = dimension;
  return index::MakeHnswIndex(options);
}

}  // namespace

CentreIndex::CentreIndex(int32_t dimension, int64_t flat_below)
    : dimension_(dimension), flat_below_(flat_below), index_(Make(dimension, false)) {}

Status CentreIndex::Put(int64_t id, std::vector<float> mean, double slack) {
  const auto found = places_.find(id);
  if (found != places_.end()) {
    double moved = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      const double apart = double{mean[i]} - double{found->second[i]};
      moved += apart * apart;
    }
    if (moved == 0 || (is_graph_ && moved <= slack)) return OkStatus();
    index_->Remove({&id, 1});
  }
  EVERLONG_RETURN_IF_ERROR(index_->Add({&id, 1}, mean));
  places_[id] = std::move(mean);
  return !is_graph_ && size() >= flat_below_ ? Rebuild(true) : OkStatus();
}

void CentreIndex::Remove(int64_t id) {
  if (places_.erase(id) == 0) return;
  index_->Remove({&id, 1});
  // What fails leaves the graph, which works for few as well.
  if (is_graph_ && size() < flat_below_ / 2) static_cast<void>(Rebuild(false));
}

Status CentreIndex::Rebuild(bool graph) {
  std::vector<int64_t> ids;
  for (const auto& [id, place] : places_) ids.push_back(id);
  std::ranges::sort(ids);
  std::vector<float> places;
  places.reserve(ids.size() * static_cast<size_t>(dimension_));
  for (const int64_t id : ids) places.insert(places.end(), places_[id].begin(), places_[id].end());
  std::unique_ptr<index::VectorIndex> rebuilt = Make(dimension_, graph);
  EVERLONG_RETURN_IF_ERROR(rebuilt->Add(ids, places));
  index_ = std::move(rebuilt);
  is_graph_ = graph;
  return OkStatus();
}

Result<std::vector<int64_t>> CentreIndex::Nearest(std::span<const float> to, int32_t k) const {
  if (places_.empty()) return std::vector<int64_t>();
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<index::VectorHits> hits, index_->Search(to, k, {}));
  std::vector<int64_t> ids;
  for (const index::VectorHit& hit : hits[0]) ids.push_back(hit.id);
  return ids;
}

int64_t CentreIndex::bytes() const {
  return index_->bytes() + size() * static_cast<int64_t>(static_cast<size_t>(dimension_) * sizeof(float) + 64);
}

}  // namespace everlong::graph
