// How InvertedLists splits lists that are too full, and dissolves those that are too small.
#include <algorithm>

#include "everlong/index/two_means.h"
#include "inverted_lists.h"

namespace everlong::index {
namespace {

constexpr size_t kNeighbours = 16;  // lists with members that may go to the halves of a list that is split

// Return the mean [width] of those members that lie on a side.
std::vector<float> MeanOf(const WeightedPoints& members, const std::vector<bool>& right, bool side) {
  const auto width = static_cast<size_t>(members.dimension);
  std::vector<double> mean(width, 0.0);
  double count = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    if (right[i] != side) continue;
    count += 1;
    for (size_t j = 0; j < width; ++j) mean[j] += members.points[i * width + j];
  }
  std::vector<float> rounded(width);
  for (size_t j = 0; j < width; ++j) rounded[j] = static_cast<float>(mean[j] / std::max(count, 1.0));
  return rounded;
}

// Return the nearest other lists.
std::vector<int32_t> ListsBeside(const ListCentres& centres, int32_t list) {
  std::vector<float> scores;
  centres.Nearness(centres.centroid(At(list)), scores);
  return BestLists(scores, kNeighbours, list);
}

}  // namespace

void InvertedLists::SplitFullOnes(std::span<const int32_t> filled) {
  std::vector<int64_t> full;  // ids: numbers change
  for (const int32_t list : filled) {
    if (Room(list) < 0) full.push_back(lists_[At(list)].id);
  }
  std::ranges::sort(full);
  full.erase(std::unique(full.begin(), full.end()), full.end());
  while (!full.empty()) {
    const int64_t id = full.back();
    full.pop_back();
    const auto list = static_cast<int32_t>(std::ranges::find(lists_, id, &List::id) - lists_.begin());
    if (Room(list) >= 0) continue;
    for (const int64_t half : Split(list)) full.push_back(half);
  }
}

std::array<int64_t, 2> InvertedLists::Split(int32_t list) {
  const std::vector<VectorRow> members = lists_[At(list)].rows;
  WeightedPoints points;
  points.dimension = static_cast<int32_t>(width_);
  for (const VectorRow row : members) points.points.insert(points.points.end(), vector(row), vector(row) + width_);
  points.weights.assign(members.size(), 1.0);
  const std::vector<bool> right = TwoMeans(points, static_cast<uint64_t>(lists_[At(list)].id), true);
  const ListCentres::Learned learned = centres_.LearnedOf(list);
  const std::vector<int32_t> beside = ListsBeside(centres_, list);
  const size_t most = members.size() - members.size() / 8;  // of one half

  const int32_t left_half = NewList(MeanOf(points, right, false), learned);
  const int32_t halves[2] = {left_half, NewList(MeanOf(points, right, true), learned)};
  for (size_t i = 0; i < members.size(); ++i) {
    TakeOut(members[i]);
    const int32_t own = halves[right[i] ? 1 : 0];
    const int32_t other = halves[right[i] ? 0 : 1];
    const bool may_cross = lists_[At(other)].rows.size() < most;
    PutIn(members[i], NearestOf(members[i], own, may_cross ? other : own, beside));
  }
  for (const int32_t other : beside) {
    const std::vector<VectorRow> theirs = lists_[At(other)].rows;
    for (const VectorRow row : theirs) {
      const float own = centres_.Nearness(vector(row), other);
      const float nearness[2] = {centres_.Nearness(vector(row), halves[0]), centres_.Nearness(vector(row), halves[1])};
      const size_t best = nearness[1] > nearness[0] ? 1 : 0;
      if (!(nearness[best] > own) || Room(halves[best]) <= 0) continue;
      TakeOut(row);
      PutIn(row, halves[best]);
    }
  }
  const std::array<int64_t, 2> ids{lists_[At(halves[0])].id, lists_[At(halves[1])].id};
  DropList(list);
  return ids;
}

int32_t InvertedLists::NearestOf(VectorRow row, int32_t own, int32_t other, std::span<const int32_t> beside) const {
  int32_t best = own;
  float nearness = centres_.Nearness(vector(row), own);
  const auto hear = [&](int32_t list) {
    const float found = centres_.Nearness(vector(row), list);
    if (found > nearness) {
      nearness = found;
      best = list;
    }
  };
  hear(other);
  for (const int32_t list : beside) {
    if (Room(list) > 0) hear(list);
  }
  return best;
}

void InvertedLists::GiveUp(int32_t list) {
  const std::vector<VectorRow> members = lists_[At(list)].rows;
  const std::vector<int32_t> beside = ListsBeside(centres_, list);
  std::vector<int64_t> filled;
  for (const VectorRow row : members) {
    const int32_t to = NearestOf(row, beside[0], beside[0], beside);
    TakeOut(row);
    PutIn(row, to);
    filled.push_back(lists_[At(to)].id);
  }
  DropList(list);
  std::vector<int32_t> numbers;
  for (const int64_t id : filled) {
    numbers.push_back(static_cast<int32_t>(std::ranges::find(lists_, id, &List::id) - lists_.begin()));
  }
  SplitFullOnes(numbers);
}

}  // namespace everlong::index
