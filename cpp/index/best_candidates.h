// The best rows of a scan so far, before the winners are scored again in fp64.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace everlong::index {

struct Candidate {
  int64_t id = 0;
  float score = 0;
  int32_t row = 0;
};

// The best `capacity` candidates so far: larger scores first, ties by the smaller id. The worst is on top of a heap.
class BestCandidates {
 public:
  explicit BestCandidates(size_t capacity) : capacity_(capacity) {}

  void Offer(const Candidate& candidate) {
    if (heap_.size() == capacity_) {
      if (!Better(candidate, heap_.front())) return;
      std::ranges::pop_heap(heap_, Better);
      heap_.back() = candidate;
    } else {
      heap_.push_back(candidate);
    }
    std::ranges::push_heap(heap_, Better);
  }
  // Return the score below which nothing is taken.
  [[nodiscard]] float Threshold() const {
    return heap_.size() == capacity_ ? heap_.front().score : -std::numeric_limits<float>::infinity();
  }
  [[nodiscard]] const std::vector<Candidate>& all() const { return heap_; }

 private:
  static bool Better(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  }

  size_t capacity_;
  std::vector<Candidate> heap_;
};

}  // namespace everlong::index
