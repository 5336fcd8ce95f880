#include "growing_topics.h"

#include <algorithm>
#include <cmath>

namespace everlong::graph {
namespace {

constexpr double kFarthest = 1.5;  // radii, of a member from the mean that it joins; two of one topic are 1.41 apart
// Of so many nearest centres, a member joins the one whose squared distances from its mean grow least. They grow by n /
// (n + 1) of the squared distance (Ward, 1963; D4 of BIRCH). By distance alone, centres of many members would attract
// it: their means are nearer to all vectors, without what is special to single members.
constexpr int64_t kJoinedAmong = 64;

bool operator<(const NearTopics::Near& a, const NearTopics::Near& b) {
  return std::pair(a.cost, a.id) < std::pair(b.cost, b.id);
}

}  // namespace

void NearTopics::Keep(const Near& one) {
  if (count == 0 || one < centres[0]) {
    centres[1] = centres[0];
    centres[0] = one;
  } else if (count == 1 || one < centres[1]) {
    centres[1] = one;
  }
  count = std::min(count + 1, 2);
}

Gardener::State::State(const GardenerOptions& with, VectorOf by)
    : options(with), vector_of(std::move(by)), all(with.dimension) {
  for (int32_t level = 0; level < options.levels; ++level) levels.emplace_back(options.dimension, options.looked_at);
}

double Gardener::State::SquaredRadius(int32_t level) const {
  const double first = options.radius > 0 ? options.radius * options.radius : options.share * options.share * spread;
  return first * std::pow(options.growth, 2 * level);
}

double Gardener::State::Radius(int32_t level) const { return std::sqrt(SquaredRadius(level)); }

void Gardener::State::SetParent(int64_t member, int64_t before, int64_t parent) {
  parent_before.try_emplace(member, before);
  if (member < kFirstTopic) {
    centre_of[member] = parent;
  }
}

void Gardener::State::Moved(int32_t level, int64_t id) {
  changed[id] = level;
  At(level).index.Put(id);
}

NearTopics Gardener::State::NearestTo(int32_t level, const Sums& to, double farthest, int64_t without) {
  TopicLevel& of = At(level);
  NearTopics near;
  for (const CentreIndex::Candidate& candidate : of.index.Nearest(to, without == 0 ? 2 : 3, farthest)) {
    if (candidate.id == without) continue;
    if (near.count == 2 && candidate.least * candidate.least > near.centres[1].cost) break;
    const double squared_distance = SquaredDistance(of.Of(candidate.id).sums, to);
    if (squared_distance <= farthest * farthest) near.Keep({candidate.id, squared_distance, squared_distance});
  }
  return near;
}

NearTopics Gardener::State::CheapestFor(int32_t level, const Sums& member) {
  TopicLevel& of = At(level);
  const double farthest = kFarthest * Radius(level);
  const auto share = [&member](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(count + member.count());
  };
  NearTopics near;
  for (const CentreIndex::Candidate& candidate : of.index.Nearest(member, kJoinedAmong, farthest)) {
    if (near.count == 2 && share(1) * candidate.least * candidate.least > near.centres[1].cost) break;
    const Sums& centre = of.Of(candidate.id).sums;
    const double squared_distance = SquaredDistance(centre, member);
    if (squared_distance > farthest * farthest) continue;
    near.Keep({candidate.id, squared_distance, share(centre.count()) * squared_distance});
  }
  return near;
}

bool Gardener::State::Takes(int32_t level, const NearTopics::Near& centre, const Sums& member) {
  const double most = SquaredRadius(level);
  return centre.squared_distance <= kFarthest * kFarthest * most &&
         SquaredRadiusOfBoth(Of(level, centre.id).sums, member) <= most;
}

void Gardener::State::Change(int32_t level, int64_t id, const Sums& sums, Sign sign, double time) {
  for (; id != 0; id = Of(level++, id).parent) {
    GrowingTopic& centre = Of(level, id);
    if (sign == Sign::kAdd) {
      centre.sums.Add(sums);
      centre.updated_at = std::max(centre.updated_at, time);
    } else {
      centre.sums.Subtract(sums);
    }
    if (centre.sums.count() > 0) Moved(level, id);
  }
}

void Gardener::State::AddMember(int32_t level, int64_t id, int64_t member) {
  GrowingTopic& centre = Of(level, id);
  centre.members.insert(std::ranges::upper_bound(centre.members, member), member);
  if (level > 0) Of(level - 1, member).parent = id;
}

void Gardener::State::RemoveMember(int32_t level, int64_t id, int64_t member) {
  GrowingTopic& centre = Of(level, id);
  centre.members.erase(std::ranges::lower_bound(centre.members, member));
}

void Gardener::State::TakeFrom(int32_t level, int64_t id, int64_t member, const Sums& sums) {
  RemoveMember(level, id, member);
  Change(level, id, sums, Sign::kSubtract, 0);
  while (id != 0 && Of(level, id).members.empty()) {
    const int64_t above = Of(level, id).parent;
    if (above != 0) RemoveMember(level + 1, above, id);
    Erase(level, id);
    id = above;
    ++level;
  }
}

void Gardener::State::Erase(int32_t level, int64_t id) {
  At(level).Erase(id);
  changed.erase(id);
  parent_before.erase(id);
  dropped.insert(id);
}

}  // namespace everlong::graph
