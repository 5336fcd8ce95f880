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

Status CentreIndex::AddLabel(int64_t id, Place& place) {
  const int64_t label = next_label_++;
  EVERLONG_RETURN_IF_ERROR(index_->Add({&label, 1}, place.mean));
  place.labels.push_back(label);
  names_[label] = id;
  return OkStatus();
}

Status CentreIndex::Put(int64_t id, std::vector<float> mean, double slack) {
  Place& place = places_[id];
  if (!place.mean.empty()) {
    double moved = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      const double apart = double{mean[i]} - double{place.mean[i]};
      moved += apart * apart;
    }
    if (moved == 0 || (is_graph_ && moved <= slack)) return OkStatus();
    if (!is_graph_) {
      index_->Remove(place.labels);
      for (const int64_t label : place.labels) names_.erase(label);
      place.labels.clear();
    }
  }
  place.mean = std::move(mean);
  EVERLONG_RETURN_IF_ERROR(AddLabel(id, place));
  if (!is_graph_) return size() >= flat_below_ ? Rebuild(true) : OkStatus();
  return index_->size() > 2 * size() + flat_below_ ? Rebuild(true) : OkStatus();
}

void CentreIndex::Remove(int64_t id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return;
  for (const int64_t label : found->second.labels) names_.erase(label);
  if (!is_graph_) index_->Remove(found->second.labels);
  places_.erase(found);
  // What fails leaves the graph, which works for few as well.
  if (is_graph_ && size() < flat_below_ / 2) static_cast<void>(Rebuild(false));
}

Status CentreIndex::Rebuild(bool graph) {
  std::vector<int64_t> ids;
  for (const auto& [id, place] : places_) ids.push_back(id);
  std::ranges::sort(ids);
  std::vector<int64_t> labels;
  std::vector<float> means;
  means.reserve(ids.size() * static_cast<size_t>(dimension_));
  for (const int64_t id : ids) {
    labels.push_back(std::ssize(labels));
    const std::vector<float>& mean = places_[id].mean;
    means.insert(means.end(), mean.begin(), mean.end());
  }
  std::unique_ptr<index::VectorIndex> rebuilt = Make(dimension_, graph);
  // One after the other: what a graph is like depends on the order, and of several at once that is up to the threads.
  const auto width = static_cast<size_t>(dimension_);
  for (size_t i = 0; i < labels.size(); ++i) {
    EVERLONG_RETURN_IF_ERROR(rebuilt->Add({&labels[i], 1}, std::span(means).subspan(i * width, width)));
  }
  index_ = std::move(rebuilt);
  is_graph_ = graph;
  names_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    places_[ids[i]].labels.assign(1, labels[i]);
    names_[labels[i]] = ids[i];
  }
  next_label_ = std::ssize(labels);
  return OkStatus();
}

Result<std::vector<int64_t>> CentreIndex::Nearest(std::span<const float> to, int32_t k) const {
  std::vector<int64_t> ids;
  if (places_.empty()) return ids;
  const auto wanted = static_cast<size_t>(std::min<int64_t>(k, size()));
  for (int64_t asked = is_graph_ ? int64_t{2} * k : k;; asked *= 4) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<index::VectorHits> hits,
                              index_->Search(to, static_cast<int32_t>(std::min(asked, index_->size())), {}));
    ids.clear();
    for (const index::VectorHit& hit : hits[0]) {
      const auto name = names_.find(hit.id);
      if (name == names_.end() || std::ranges::find(ids, name->second) != ids.end()) continue;
      ids.push_back(name->second);
      if (ids.size() == wanted) return ids;
    }
    if (asked >= index_->size() || (!ids.empty() && asked > int64_t{2} * k)) return ids;
  }
}

int64_t CentreIndex::bytes() const {
  const auto of_centre = static_cast<int64_t>(sizeof(Place) + static_cast<size_t>(dimension_) * sizeof(float) + 48);
  return index_->bytes() + size() * of_centre + std::ssize(names_) * 48;
}

}  // namespace everlong::graph
