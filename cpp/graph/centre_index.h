// An index of the centres of one level that finds the nearest ones. It compares whole numbers first.
//
// Centres are coded with one byte a number. They lie in lists, each with the centres nearest to its middle. A search
// looks at the nearest lists until it has seen so many centres. If there are no more centres than that, it misses none.
// The index knows how much coding lost of every vector. So the distance of codes tells the caller how near a centre can
// be, and it measures no more distances than it must.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "code_rows.h"
#include "everlong/graph/sums.h"

namespace everlong::graph {

// Use it from one thread at a time. The same calls give the same results on any machine.
class CentreIndex {
 public:
  using SumsOf = std::function<const Sums&(int64_t id)>;
  struct Candidate {
    int64_t id = 0;
    double least = 0;  // its distance is at least this
  };

  // `sums_of` returns the place of a centre that was put. A search looks at `looked_at` of them, or a few more.
  CentreIndex(int32_t dimension, int64_t looked_at, SumsOf sums_of);

  void Put(int64_t id);  // at the place that sums_of returns
  void Remove(int64_t id);
  // Return candidates for the k nearest of those that it looks at and that are no farther than `farthest`; all, if
  // there are fewer. Those that may be nearest come first, ties by id. Valid until the next call.
  [[nodiscard]] std::span<const Candidate> Nearest(const Sums& to, int64_t k, double farthest);
  [[nodiscard]] int64_t size() const { return std::ssize(places_); }
  [[nodiscard]] int64_t bytes() const;  // of host memory, about

 private:
  struct Place {
    size_t list = 0;
    int64_t row = 0;
  };
  struct Found {
    int32_t distance = 0;
    int64_t id = 0;
    auto operator<=>(const Found&) const = default;
  };

  // Return false where a number is beyond what can be coded; the code is then the nearest that can.
  bool Encode(const Sums& sums, Codes& codes);
  [[nodiscard]] size_t NearestList(const Codes& codes);
  void AddRow(size_t list, int64_t id, const Codes& codes);
  void RemoveRow(const Place& place);
  void SplitIfTooLong(size_t list);
  void SetMiddle(size_t list);
  void DropList(size_t list);
  // Choose offset, step and lists anew.
  void Rebuild();
  void ChooseMiddles(std::span<const int64_t> ids);

  int64_t width_;
  int64_t looked_at_;
  int32_t most_code_;
  SumsOf sums_of_;
  std::vector<double> offset_;  // [dimension]: codes count from here, in steps
  double step_ = 0;
  double most_lost_ = 0;  // of the centres coded since the last Rebuild, in steps
  int64_t rebuilt_with_ = 0;
  CodeRows middles_;             // of the lists; ids are the lists' numbers
  std::vector<CodeRows> lists_;  // ids are the centres'
  std::unordered_map<int64_t, Place> places_;
  // Buffers of the current call.
  Codes codes_;
  CodeRows::Apart of_lists_;
  CodeRows::Apart of_rows_;
  std::vector<Found> order_;
  std::vector<Found> found_;
  std::vector<Found> best_;
  std::vector<Candidate> candidates_;
};

}  // namespace everlong::graph
