// Which centres of a level are nearest: an index of vectors that is exact while they are few, a graph when they are
// many.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/vector_index.h"

namespace everlong::graph {

// One thread at a time.
class CentreIndex {
 public:
  // A graph from `flat_below` centres on, until there are half as many.
  CentreIndex(int32_t dimension, int64_t flat_below);

  // The centre is here now. A graph leaves it where it was, up to sqrt(`slack`) away: to move it costs as much as many
  // searches.
  Status Put(int64_t id, std::vector<float> mean, double slack);
  void Remove(int64_t id);
  // The k that were put nearest to it, or all, nearest first; of a graph about these.
  [[nodiscard]] Result<std::vector<int64_t>> Nearest(std::span<const float> to, int32_t k) const;
  [[nodiscard]] int64_t size() const { return std::ssize(places_); }
  [[nodiscard]] bool is_graph() const { return is_graph_; }
  [[nodiscard]] int64_t bytes() const;  // of host memory, about

 private:
  struct Place {
    std::vector<float> mean;
    std::vector<int64_t> labels;  // in the index
  };

  Status AddLabel(int64_t id, Place& place);
  Status Rebuild(bool graph);

  int32_t dimension_;
  int64_t flat_below_;
  bool is_graph_ = false;
  std::unique_ptr<index::VectorIndex> index_;
  std::unordered_map<int64_t, Place> places_;
  // In a graph a vector that is taken out costs more than one that stays. So a centre that moves is found by where it
  // was, too, and one that goes leaves a vector that names nobody, until there are as many of these as centres.
  std::unordered_map<int64_t, int64_t> names_;  // label -> centre
  int64_t next_label_ = 0;
};

}  // namespace everlong::graph
