// How topics grow: blocks join them, and they split, merge and move.
#include <algorithm>
#include <cmath>
#include <string>

#include "everlong/base/mixed_bits.h"
#include "growing_topics.h"

namespace everlong::graph {
namespace {

// Hysteresis: what is split is wider than what is let in or merged, so that neither undoes the other.
constexpr double kSplitFrom = 1.25;  // of the radius
constexpr double kMergeBelow = 2;    // radii; two of equal size that are farther apart are too wide together
constexpr double kMoveBelow = 0.8;   // a centre moves to another parent within so much of the distance to its own
// Once in so many blocks a centre of level 0 is checked, besides those that blocks join. Once in so many of these
// checks, one of the level above is checked.
constexpr uint64_t kWalkEvery = 8;

}  // namespace

Status Gardener::State::Attach(int32_t level, int64_t member, const Sums& sums, double time) {
  const NearTopics near = CheapestFor(level, sums);
  if (near.count > 0 && Takes(level, near.centres[0], sums)) {
    const int64_t id = near.centres[0].id;
    SetParent(member, 0, id);
    AddMember(level, id, member);
    Change(level, id, sums, Sign::kAdd, time);
    // Two centres that are both near to the new member may have become one.
    bool merged = false;
    const int64_t second = near.centres[1].id;
    if (near.count > 1) merged = MergeIfOne(level, std::min(id, second), std::max(id, second));
    return SplitUpwards(level, merged ? std::min(id, second) : id);
  }
  const int64_t id = next_id++;
  GrowingTopic centre;
  centre.sums = sums;
  centre.created_at = centre.updated_at = time;
  At(level).Emplace(id, std::move(centre));
  SetParent(member, 0, id);
  AddMember(level, id, member);
  Moved(level, id);
  return IsHighest(level) ? OkStatus() : Attach(level + 1, id, sums, time);
}

bool Gardener::State::IsTooMuch(int32_t level, const GrowingTopic& centre) const {
  const int64_t members = std::ssize(centre.members);
  if (members < 2 || (centre.could_not_split > 0 && members < 2 * centre.could_not_split)) return false;
  return members > options.most_members || centre.sums.SquaredRadius() > kSplitFrom * kSplitFrom * SquaredRadius(level);
}

Status Gardener::State::SplitUpwards(int32_t level, int64_t id) {
  for (; id != 0; ++level) {
    const int64_t above = Of(level, id).parent;
    EVERLONG_RETURN_IF_ERROR(SplitIfTooMuch(level, id));
    id = above;
  }
  return OkStatus();
}

Result<index::WeightedPoints> Gardener::State::PointsOf(int32_t level, const GrowingTopic& centre) {
  index::WeightedPoints points;
  points.dimension = options.dimension;
  points.points.reserve(centre.members.size() * static_cast<size_t>(options.dimension));
  for (const int64_t member : centre.members) {
    std::vector<float> point;
    if (level > 0) {
      const Sums& sums = Of(level - 1, member).sums;
      point = sums.Mean();
      points.weights.push_back(static_cast<double>(sums.count()));
    } else {
      EVERLONG_ASSIGN_OR_RETURN(point, vector_of(member));
      points.weights.push_back(1);
    }
    if (std::ssize(point) != options.dimension) {
      return CorruptError("the vector of node " + std::to_string(member) + " has " + std::to_string(point.size()) +
                          " numbers, expected " + std::to_string(options.dimension));
    }
    points.points.insert(points.points.end(), point.begin(), point.end());
  }
  return points;
}

Status Gardener::State::SplitIfTooMuch(int32_t level, int64_t id) {
  if (!IsTooMuch(level, Of(level, id))) return OkStatus();
  GrowingTopic& centre = Of(level, id);
  EVERLONG_ASSIGN_OR_RETURN(const index::WeightedPoints points, PointsOf(level, centre));
  const bool is_full = std::ssize(centre.members) > options.most_members;
  const std::vector<bool> right = index::TwoMeans(points, MixedBits(options.seed, static_cast<uint64_t>(id)), is_full);
  if (std::ranges::count(right, true) == 0) {
    centre.could_not_split = std::ssize(centre.members);
    return OkStatus();
  }
  centre.could_not_split = 0;
  // The side of the oldest member keeps the id.
  const bool goes = !right[0];
  const int64_t other_id = next_id++;
  GrowingTopic other;
  other.sums = Sums(options.dimension);
  other.parent = centre.parent;
  other.created_at = centre.created_at;
  other.updated_at = centre.updated_at;
  std::vector<int64_t> stay;
  for (size_t i = 0; i < right.size(); ++i) {
    const int64_t member = centre.members[i];
    if (right[i] != goes) {
      stay.push_back(member);
      continue;
    }
    other.members.push_back(member);
    SetParent(member, id, other_id);
    if (level > 0) {
      GrowingTopic& below = Of(level - 1, member);
      below.parent = other_id;
      other.sums.Add(below.sums);
    } else {
      const auto width = static_cast<size_t>(options.dimension);
      EVERLONG_ASSIGN_OR_RETURN(const Sums sums, Sums::Of(std::span(points.points).subspan(i * width, width)));
      other.sums.Add(sums);
    }
  }
  centre.members = std::move(stay);
  centre.sums.Subtract(other.sums);
  const int64_t above = centre.parent;
  At(level).Emplace(other_id, std::move(other));
  Moved(level, id);
  Moved(level, other_id);
  if (above != 0) {
    AddMember(level + 1, above, other_id);
    SetParent(other_id, 0, above);
    changed[above] = level + 1;
  }
  EVERLONG_RETURN_IF_ERROR(SplitIfTooMuch(level, id));
  return SplitIfTooMuch(level, other_id);
}

bool Gardener::State::MergeIfOne(int32_t level, int64_t id, int64_t other_id) {
  GrowingTopic& centre = Of(level, id);
  GrowingTopic& other = Of(level, other_id);
  if (std::ssize(centre.members) + std::ssize(other.members) > options.most_members / 2 ||
      SquaredRadiusOfBoth(centre.sums, other.sums) > SquaredRadius(level)) {
    return false;
  }
  for (const int64_t member : other.members) {
    SetParent(member, other_id, id);
    AddMember(level, id, member);
  }
  const Sums sums = other.sums;
  const int64_t above = other.parent;
  const double created_at = other.created_at;
  const double time = other.updated_at;
  other.members.clear();
  centre.created_at = std::min(centre.created_at, created_at);
  centre.could_not_split = 0;
  Erase(level, other_id);
  if (above != 0) TakeFrom(level + 1, above, other_id, sums);
  Change(level, id, sums, Sign::kAdd, time);
  return true;
}

Status Gardener::State::Walk(uint64_t draw) {
  for (int32_t level = 0; level < options.levels && draw % kWalkEvery == 0; ++level, draw /= kWalkEvery) {
    const std::map<int64_t, GrowingTopic>& centres = At(level).centres;
    const auto ids = static_cast<uint64_t>(centres.rbegin()->first - centres.begin()->first + 1);
    const int64_t drawn = centres.begin()->first + static_cast<int64_t>(MixedBits(draw, level) % ids);
    int64_t id = centres.lower_bound(drawn)->first;
    EVERLONG_RETURN_IF_ERROR(SplitUpwards(level, id));
    // Each merge removes a centre that was made before, so all merges together cost no more than making them.
    while (true) {
      const NearTopics near = NearestTo(level, Of(level, id).sums, kMergeBelow * Radius(level), id);
      if (near.count == 0) break;
      const int64_t other = near.centres[0].id;
      if (!MergeIfOne(level, std::min(id, other), std::max(id, other))) break;
      id = std::min(id, other);
    }
    if (!IsHighest(level)) EVERLONG_RETURN_IF_ERROR(MoveIfNearer(level, id));
  }
  return OkStatus();
}

Status Gardener::State::MoveIfNearer(int32_t level, int64_t id) {
  const int64_t parent = Of(level, id).parent;
  const double now = SquaredDistance(Of(level + 1, parent).sums, Of(level, id).sums);
  const NearTopics near = NearestTo(level + 1, Of(level, id).sums, kMoveBelow * std::sqrt(now));
  if (near.count == 0 || near.centres[0].id == parent) return OkStatus();
  const Sums sums = Of(level, id).sums;
  if (!Takes(level + 1, near.centres[0], sums)) return OkStatus();
  const int64_t to = near.centres[0].id;
  SetParent(id, parent, to);
  const double time = Of(level, id).updated_at;
  AddMember(level + 1, to, id);
  Change(level + 1, to, sums, Sign::kAdd, time);
  TakeFrom(level + 1, parent, id, sums);
  return SplitUpwards(level + 1, to);
}

}  // namespace everlong::graph
