// Which centres of a level are nearest: in whole numbers first, and how far they may then be at least.
//
// Centres are coded with one byte a number and lie in lists, each with those that are nearest to its middle. A search
// looks at the nearest lists, as many as it takes for so many centres; where there are no more centres than that, it
// misses none. How much coding loses is known of every vector, so that its caller knows from the distance of codes how
// near a centre may really be, and measures no more than it has to.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "code_rows.h"
#include "everlong/graph/sums.h"

namespace everlong::graph {

// One thread at a time. The same calls give the same, on any machine.
class CentreIndex {
 public:
  using SumsOf = std::function<const Sums&(int64_t id)>;
  struct Candidate {
    int64_t id = 0;
    double least = 0;  // it is no nearer than this
  };

  // `sums_of` says where centres are that were put. A search looks at `looked_at` of them, or a few more.
  CentreIndex(int32_t dimension, int64_t looked_at, SumsOf sums_of);

  void Put(int64_t id);  // it is where sums_of says
  void Remove(int64_t id);
  // Of those that it looks at and that are no farther than `farthest` the k nearest are among these, or all; those that
  // may be nearest first, ties by id. Until the next call.
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

  // False where a number is beyond what can be coded; it is then the nearest that can.
  bool Encode(const Sums& sums, Codes& codes);
  [[nodiscard]] size_t NearestList(const Codes& codes);
  void AddRow(size_t list, int64_t id, const Codes& codes);
  void RemoveRow(const Place& place);
  void SplitIfTooLong(size_t list);
  void SetMiddle(size_t list);
  void DropList(size_t list);
  // Chooses offset, step and lists anew.
  void Rebuild();
  void ChooseMiddles(std::span<const int64_t> ids);

  int64_t dimension_;
  int64_t width_;
  int64_t looked_at_;
  int32_t most_code_;
  SumsOf sums_of_;
  std::vector<double> offset_;  // [dimension]: what is coded is beyond it, in steps
  double step_ = 0;
  double most_lost_ = 0;  // of the centres that were coded since the last Rebuild, in steps
  int64_t rebuilt_with_ = 0;
  CodeRows middles_;             // of the lists; ids are their numbers
  std::vector<CodeRows> lists_;  // ids are the centres'
  std::unordered_map<int64_t, Place> places_;
  // For what is under way.
  Codes codes_;
  Codes moved_;
  CodeRows::Apart of_lists_;
  CodeRows::Apart of_rows_;
  std::vector<Found> order_;
  std::vector<Found> found_;
  std::vector<Found> best_;
  std::vector<Candidate> candidates_;
};

}  // namespace everlong::graph
