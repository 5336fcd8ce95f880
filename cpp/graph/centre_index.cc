#include "centre_index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "code_kernel.h"
#include "everlong/base/check.h"

namespace everlong::graph {
namespace {

constexpr int64_t kList = 128;          // centres of a list when lists are made; half of the most that it may have
constexpr int64_t kSampled = 64;        // centres a list by which its middle is chosen
constexpr int32_t kRounds = 4;          // of k-means
constexpr ptrdiff_t kSortedLists = 32;  // that a search sorts at once; it seldom looks at more
// Room beyond the largest number of a vector, when step and offset are chosen.
constexpr double kRoom = 1.25;
// A search keeps only its nearest candidates once it has so many. There are many only where nothing tells them apart.
constexpr size_t kMostFound = 512;
constexpr size_t kKept = 128;
// Allowance for the rounding of the sums that say how much coding lost, in steps.
constexpr double kRounding = 1e-3;

// Round to the nearest whole number. Numbers are no larger than 2^50.
double Whole(double value) {
  constexpr double kAll = 0x1.8p52;
  return (value + kAll) - kAll;
}

int32_t MostCode(int64_t width) {  // twice its square, times the width, fits int32 (code_rows.h)
  return std::min(127, static_cast<int32_t>(std::sqrt(0x1p29 / static_cast<double>(width))));
}

// Divide whole numbers, rounded to the nearest, halves away from zero.
int64_t Quotient(int64_t sum, int64_t count) {
  return sum >= 0 ? (sum + count / 2) / count : -((-sum + count / 2) / count);
}

void SetMean(std::span<const int64_t> sums, int64_t count, Codes& codes) {
  codes.values.resize(sums.size());
  codes.square = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto value = static_cast<int16_t>(Quotient(sums[i], count));
    codes.values[i] = value;
    codes.square += value * value;
  }
}

}  // namespace

CentreIndex::CentreIndex(int32_t dimension, int64_t looked_at, SumsOf sums_of)
    : width_((int64_t{dimension} + 1) / 2 * 2),
      looked_at_(looked_at),
      most_code_(MostCode(width_)),
      sums_of_(std::move(sums_of)),
      offset_(static_cast<size_t>(dimension), 0.0),
      middles_(width_) {
  codes_.values.resize(static_cast<size_t>(width_));
}

bool CentreIndex::Encode(const Sums& sums, Codes& codes) {
  const double share = 1 / static_cast<double>(sums.count());
  const double steps = step_ > 0 ? 1 / step_ : 0;
  const double most = most_code_;
  const std::span<const double> linear = sums.linear();
  double largest = 0;
  double lost = 0;
  int32_t square = 0;
  for (size_t i = 0; i < linear.size(); ++i) {
    const double exact = (linear[i] * share - offset_[i]) * steps;
    largest = std::max(largest, std::abs(exact));
    const double code = std::clamp(Whole(std::clamp(exact, -1e6, 1e6)), -most, most);
    lost += (exact - code) * (exact - code);
    codes.values[i] = static_cast<int16_t>(code);
    square += codes.values[i] * codes.values[i];
  }
  codes.square = square;
  codes.lost = std::sqrt(lost) + kRounding;
  return largest <= most + 0.5;
}

size_t CentreIndex::NearestList(const Codes& codes) {
  middles_.Distances(codes, of_lists_);
  const auto first = of_lists_.distances.begin();
  return static_cast<size_t>(std::min_element(first, first + middles_.size()) - first);
}

void CentreIndex::AddRow(size_t list, int64_t id, const Codes& codes) {
  places_[id] = {list, lists_[list].size()};
  lists_[list].Add(id, codes);
}

void CentreIndex::RemoveRow(const Place& place) {
  CodeRows& list = lists_[place.list];
  const int64_t last = list.ids().back();
  list.Remove(place.row);
  if (place.row < list.size()) places_[last].row = place.row;
}

void CentreIndex::Put(int64_t id) {
  const Sums& sums = sums_of_(id);
  const auto found = places_.find(id);
  const bool is_new = found == places_.end();
  const bool fits = Encode(sums, codes_) && step_ > 0;
  if (!fits || (is_new && size() >= 2 * rebuilt_with_)) {
    places_[id];
    return Rebuild();
  }
  most_lost_ = std::max(most_lost_, codes_.lost);
  if (!is_new && lists_[found->second.list].Is(found->second.row, codes_)) return;
  const size_t list = NearestList(codes_);
  if (!is_new) {
    if (found->second.list == list) return lists_[list].Set(found->second.row, codes_);
    const size_t left = found->second.list;
    RemoveRow(found->second);
    AddRow(list, id, codes_);
    if (lists_[left].size() == 0) DropList(left);
    return SplitIfTooLong(places_[id].list);
  }
  AddRow(list, id, codes_);
  SplitIfTooLong(list);
}

void CentreIndex::Remove(int64_t id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return;
  const Place place = found->second;
  RemoveRow(place);
  places_.erase(id);
  if (size() > 0 && size() < rebuilt_with_ / 4) return Rebuild();
  if (lists_[place.list].size() == 0) DropList(place.list);
}

void CentreIndex::DropList(size_t list) {
  if (lists_.size() == 1) return;
  if (list + 1 < lists_.size()) {
    lists_[list] = std::move(lists_.back());
    for (const int64_t id : lists_[list].ids()) places_[id].list = list;
  }
  lists_.pop_back();
  middles_.Remove(static_cast<int64_t>(list));
}

void CentreIndex::SetMiddle(size_t list) {
  const CodeRows& rows = lists_[list];
  std::vector<int64_t> sums(static_cast<size_t>(width_), 0);
  for (int64_t row = 0; row < rows.size(); ++row) rows.AddTo(row, sums);
  Codes middle;
  SetMean(sums, rows.size(), middle);
  middles_.Set(static_cast<int64_t>(list), middle);
}

void CentreIndex::SplitIfTooLong(size_t list) {
  if (lists_[list].size() <= 2 * kList) return;
  const CodeRows rows = std::move(lists_[list]);
  // The two sides begin with the row that is farthest from the middle, and the row that is farthest from that.
  Codes side[2];
  middles_.Read(static_cast<int64_t>(list), side[1]);
  for (Codes& farthest : side) {
    rows.Distances(side[1], of_rows_);
    int64_t at = 0;
    for (int64_t row = 1; row < rows.size(); ++row) {
      const auto of = [&](int64_t which) {
        return std::pair(of_rows_.distances[static_cast<size_t>(which)], -rows.ids()[static_cast<size_t>(which)]);
      };
      if (of(row) > of(at)) at = row;
    }
    rows.Read(at, farthest);
    side[1] = farthest;
  }
  CodeRows::Apart of_first;
  std::vector<int64_t> sums[2];
  std::vector<bool> is_second(static_cast<size_t>(rows.size()));
  for (int32_t round = 0; round < kRounds; ++round) {
    rows.Distances(side[0], of_first);
    rows.Distances(side[1], of_rows_);
    int64_t counts[2] = {};
    for (std::vector<int64_t>& of : sums) of.assign(static_cast<size_t>(width_), 0);
    for (int64_t row = 0; row < rows.size(); ++row) {
      const auto i = static_cast<size_t>(row);
      is_second[i] = of_rows_.distances[i] < of_first.distances[i];
      const size_t which = is_second[i] ? 1 : 0;
      rows.AddTo(row, sums[which]);
      ++counts[which];
    }
    if (counts[0] == 0 || counts[1] == 0) {  // nothing tells them apart: take any half
      for (size_t i = 0; i < is_second.size(); ++i) is_second[i] = i % 2 == 1;
      break;
    }
    for (size_t which = 0; which < 2; ++which) SetMean(sums[which], counts[which], side[which]);
  }
  const size_t other = lists_.size();
  lists_[list] = CodeRows(width_);
  lists_.emplace_back(width_);
  middles_.Add(static_cast<int64_t>(other), side[1]);
  Codes codes;
  for (int64_t row = 0; row < rows.size(); ++row) {
    rows.Read(row, codes);
    AddRow(is_second[static_cast<size_t>(row)] ? other : list, rows.ids()[static_cast<size_t>(row)], codes);
  }
  SetMiddle(list);
  SetMiddle(other);
}

void CentreIndex::Rebuild() {
  std::vector<int64_t> ids;
  ids.reserve(places_.size());
  for (const auto& [id, place] : places_) ids.push_back(id);
  std::ranges::sort(ids);
  std::ranges::fill(offset_, 0.0);
  const auto count = static_cast<double>(ids.size());
  for (const int64_t id : ids) {
    const Sums& sums = sums_of_(id);
    const double share = 1 / static_cast<double>(sums.count());
    for (size_t i = 0; i < offset_.size(); ++i) offset_[i] += sums.linear()[i] * share / count;
  }
  double largest = 0;
  for (const int64_t id : ids) {
    const Sums& sums = sums_of_(id);
    const double share = 1 / static_cast<double>(sums.count());
    for (size_t i = 0; i < offset_.size(); ++i) {
      largest = std::max(largest, std::abs(sums.linear()[i] * share - offset_[i]));
    }
  }
  // Where all are in one place, the grid of sums gives the step.
  step_ = std::max(largest * kRoom, kGrid) / most_code_;
  most_lost_ = 0;
  rebuilt_with_ = std::ssize(ids);
  ChooseMiddles(ids);
  for (const int64_t id : ids) {
    EVERLONG_CHECK(Encode(sums_of_(id), codes_));
    most_lost_ = std::max(most_lost_, codes_.lost);
    AddRow(NearestList(codes_), id, codes_);
  }
  for (size_t list = lists_.size(); list-- > 0;) {
    if (lists_[list].size() == 0) DropList(list);
  }
  for (size_t list = 0; list < lists_.size(); ++list) SplitIfTooLong(list);
}

void CentreIndex::ChooseMiddles(std::span<const int64_t> ids) {
  const size_t lists = ids.size() <= static_cast<size_t>(2 * kList) ? 1 : ids.size() / static_cast<size_t>(kList);
  middles_ = CodeRows(width_);
  lists_.assign(lists, CodeRows(width_));
  for (size_t list = 0; list < lists; ++list) {
    Encode(sums_of_(ids[list * ids.size() / lists]), codes_);
    middles_.Add(static_cast<int64_t>(list), codes_);
  }
  if (lists == 1) return;
  const size_t sampled = std::min(ids.size(), lists * static_cast<size_t>(kSampled));
  std::vector<Codes> sample(sampled);
  for (size_t i = 0; i < sampled; ++i) {
    sample[i].values.resize(static_cast<size_t>(width_));
    Encode(sums_of_(ids[i * ids.size() / sampled]), sample[i]);
  }
  const auto width = static_cast<size_t>(width_);
  std::vector<int64_t> sums(lists * width);
  std::vector<int64_t> counts(lists);
  for (int32_t round = 0; round < kRounds; ++round) {
    std::ranges::fill(sums, 0);
    std::ranges::fill(counts, 0);
    for (const Codes& codes : sample) {
      const size_t list = NearestList(codes);
      ++counts[list];
      for (size_t i = 0; i < width; ++i) sums[list * width + i] += codes.values[i];
    }
    for (size_t list = 0; list < lists; ++list) {
      if (counts[list] == 0) continue;
      SetMean(std::span(sums).subspan(list * width, width), counts[list], codes_);
      middles_.Set(static_cast<int64_t>(list), codes_);
    }
  }
}

std::span<const CentreIndex::Candidate> CentreIndex::Nearest(const Sums& to, int64_t k, double farthest) {
  candidates_.clear();
  if (size() == 0) return candidates_;
  Encode(to, codes_);
  const double lost = codes_.lost + most_lost_;
  order_.clear();
  middles_.Distances(codes_, of_lists_);
  for (size_t list = 0; list < lists_.size(); ++list) {
    order_.push_back({of_lists_.distances[list], static_cast<int64_t>(list)});
  }
  found_.clear();
  best_.clear();  // the k best so far
  int32_t limit = 0;
  // Vectors that are no farther apart have codes within the limit.
  const auto set_limit = [&](double steps) {
    limit = static_cast<int32_t>(std::min((steps + lost) * (steps + lost), 0x1p31 - 1));
  };
  set_limit(farthest / step_);
  int64_t left = looked_at_;
  for (size_t list = 0; list < order_.size() && left > 0; ++list) {
    const auto from = order_.begin() + static_cast<ptrdiff_t>(list);
    if (list % kSortedLists == 0)
      std::partial_sort(from, from + std::min(kSortedLists, order_.end() - from), order_.end());
    const CodeRows& rows = lists_[static_cast<size_t>(from->id)];
    left -= rows.size();
    rows.Distances(codes_, of_rows_, limit);
    const std::span<const int64_t> ids = rows.ids();
    for (size_t group = 0; group * kGroupRows < ids.size(); ++group) {
      for (uint32_t near = of_rows_.near[group]; near != 0; near &= near - 1) {
        const size_t row = group * kGroupRows + static_cast<size_t>(std::countr_zero(near));
        const Found one{of_rows_.distances[row], ids[row]};
        if (one.distance > limit) continue;
        found_.push_back(one);
        if (std::ssize(best_) == k && best_.back() < one) continue;
        best_.insert(std::ranges::upper_bound(best_, one), one);
        if (std::ssize(best_) > k) best_.pop_back();
        if (std::ssize(best_) == k) set_limit(std::sqrt(static_cast<double>(best_.back().distance)) + lost);
      }
    }
    std::erase_if(found_, [limit](const Found& one) { return one.distance > limit; });
    if (found_.size() > kMostFound) {
      std::ranges::nth_element(found_, found_.begin() + kKept);
      found_.resize(kKept);
    }
  }
  std::ranges::sort(found_);
  for (const Found& one : found_) {
    candidates_.push_back({one.id, step_ * std::max(0.0, std::sqrt(static_cast<double>(one.distance)) - lost)});
  }
  return candidates_;
}

int64_t CentreIndex::bytes() const {
  int64_t bytes = middles_.bytes() + size() * 48;
  for (const CodeRows& list : lists_) bytes += list.bytes();
  return bytes;
}

}  // namespace everlong::graph
