// The set of pages that a search may return, decided before it scores any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "everlong/base/check.h"

namespace everlong::index {

// Page ordinals [first, last).
struct PageRun {
  int32_t first = 0;
  int32_t last = 0;
  [[nodiscard]] int32_t size() const { return last - first; }
  bool operator==(const PageRun&) const = default;
};

// A set of page ordinals as runs. Its cost depends on the number of runs, not on the size of the archive.
// A value type, thread-safe as one.
class PageFilter {
 public:
  PageFilter() = default;  // no pages
  static PageFilter All(int32_t pages) { return PageFilter({{0, pages}}); }
  // The runs are ascending and do not overlap. Empty runs are ignored.
  explicit PageFilter(std::span<const PageRun> runs) {
    for (const PageRun& run : runs) Add(run);
  }
  PageFilter(std::initializer_list<PageRun> runs) : PageFilter(std::span(runs.begin(), runs.size())) {}

  // Add a run behind all others.
  void Add(PageRun run) {
    if (run.size() <= 0) return;
    EVERLONG_CHECK(run.first >= 0 && (runs_.empty() || run.first >= runs_.back().last));
    count_ += run.size();
    if (!runs_.empty() && runs_.back().last == run.first) {
      runs_.back().last = run.last;
    } else {
      runs_.push_back(run);
    }
  }

  // Return these pages without those of another filter.
  [[nodiscard]] PageFilter Without(const PageFilter& others) const {
    PageFilter left;
    auto other = others.runs_.begin();
    for (PageRun run : runs_) {
      while (other != others.runs_.end() && other->last <= run.first) ++other;
      for (auto next = other; next != others.runs_.end() && next->first < run.last; ++next) {
        left.Add({run.first, std::max(run.first, next->first)});
        run.first = std::min(next->last, run.last);
      }
      left.Add(run);
    }
    return left;
  }

  [[nodiscard]] bool empty() const { return runs_.empty(); }
  // Return the runs: ascending, not empty, and with a gap between any two.
  [[nodiscard]] std::span<const PageRun> runs() const { return runs_; }
  [[nodiscard]] bool Allows(int32_t ordinal) const { return AllowsAny({ordinal, ordinal + 1}); }
  // Return whether any of these pages may be returned.
  [[nodiscard]] bool AllowsAny(PageRun run) const {
    const auto after = std::ranges::upper_bound(runs_, run.first, {}, &PageRun::last);
    return run.size() > 0 && after != runs_.end() && after->first < run.last;
  }
  // Return how many pages may be returned.
  [[nodiscard]] int32_t Count() const { return count_; }
  // Return the shortest run that holds all allowed pages; [0, 0) for none.
  [[nodiscard]] PageRun Range() const {
    return runs_.empty() ? PageRun{} : PageRun{runs_.front().first, runs_.back().last};
  }

 private:
  std::vector<PageRun> runs_;
  int32_t count_ = 0;
};

// The pages of a filter by their position in it. A value type, thread-safe as one.
class PagePositions {
 public:
  // It refers to `filter`, which must outlive it.
  explicit PagePositions(const PageFilter& filter) : runs_(filter.runs()), count_(filter.Count()) {
    begins_.reserve(runs_.size());
    int32_t begin = 0;
    for (const PageRun& run : runs_) {
      begins_.push_back(begin);
      begin += run.size();
    }
  }

  [[nodiscard]] int32_t size() const { return count_; }
  [[nodiscard]] int32_t operator[](int32_t position) const {
    const size_t run = RunOf(position);
    return runs_[run].first + (position - begins_[run]);
  }
  // Call visit(position, page) for positions [first, last), in order.
  template <class Visit>
  void ForEach(int32_t first, int32_t last, const Visit& visit) const {
    if (first >= last) return;
    size_t run = RunOf(first);
    int32_t page = runs_[run].first + (first - begins_[run]);
    for (int32_t position = first; position < last; ++position, ++page) {
      if (page == runs_[run].last) page = runs_[++run].first;
      visit(position, page);
    }
  }

 private:
  [[nodiscard]] size_t RunOf(int32_t position) const {
    return static_cast<size_t>(std::ranges::upper_bound(begins_, position) - begins_.begin()) - 1;
  }

  std::span<const PageRun> runs_;
  int32_t count_;
  std::vector<int32_t> begins_;  // position of every run's first page
};

struct Hit {
  int32_t page = 0;  // ordinal in the BlockTable
  float score = 0;   // larger is better; each index kind has its own unit
  bool operator==(const Hit&) const = default;
};

}  // namespace everlong::index
