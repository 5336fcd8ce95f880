#include "everlong/graph/gardener.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "centre_index.h"
#include "everlong/base/check.h"
#include "everlong/base/mixed_bits.h"
#include "everlong/index/two_means.h"

namespace everlong::graph {
namespace {

// Hysteresis: what is split is wider than what is let in or merged, so that neither undoes the other.
constexpr double kSplitFrom = 1.25;  // of the radius
constexpr double kFarthest = 1.5;    // radii, of a member from the mean that it joins; two of one topic are 1.41 apart
// Of so many nearest centres, a member joins the one whose squared distances from its mean grow least. They grow by n /
// (n + 1) of the squared distance (Ward, 1963; D4 of BIRCH). By distance alone, centres of many members would attract
// it: their means are nearer to all vectors, without what is special to single members.
constexpr int64_t kJoinedAmong = 64;
constexpr double kMergeBelow = 2;   // radii; two of equal size that are farther apart are too wide together
constexpr double kMoveBelow = 0.8;  // a centre moves to another parent within so much of the distance to its own
// Once in so many blocks a centre of level 0 is checked, besides those that blocks join. Once in so many of these
// checks, one of the level above is checked.
constexpr uint64_t kWalkEvery = 8;

struct Growing {
  Sums sums;
  std::vector<int64_t> members;
  int64_t parent = 0;
  double created_at = 0;
  double updated_at = 0;
  int64_t could_not_split = 0;  // with so many members
};

struct Level {
  Level(int32_t dimension, int64_t looked_at)
      : index(dimension, looked_at, [this](int64_t id) -> const Sums& { return Of(id).sums; }) {}
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

  Growing& Of(int64_t id) { return *places.find(id)->second; }
  void Emplace(int64_t id, Growing&& centre) { places[id] = &centres.emplace(id, std::move(centre)).first->second; }
  void Erase(int64_t id) {
    index.Remove(id);
    places.erase(id);
    centres.erase(id);
  }

  std::map<int64_t, Growing> centres;
  std::unordered_map<int64_t, Growing*> places;  // the same centres, because a lookup in the map takes many steps
  CentreIndex index;
};

struct Near {
  int64_t id = 0;
  double squared_distance = 0;
  double cost = 0;  // the nearest has the least
};
bool operator<(const Near& a, const Near& b) { return std::pair(a.cost, a.id) < std::pair(b.cost, b.id); }
// The nearest first.
struct Nearest {
  Near centres[2];
  int32_t count = 0;
};

}  // namespace

Status Validate(const GardenerOptions& options) {
  const auto bad = [](const std::string& what) { return InvalidArgumentError("gardener: " + what); };
  if (options.dimension < 1 || options.dimension > store::kMaxNodeDimensions) {
    return bad("dimension is " + std::to_string(options.dimension) + ", expected 1 to " +
               std::to_string(store::kMaxNodeDimensions));
  }
  if (options.levels < 1 || options.levels > 8) {
    return bad("levels is " + std::to_string(options.levels) + ", expected 1 to 8");
  }
  if (!(options.radius >= 0) || !std::isfinite(options.radius)) {
    return bad("radius is " + std::to_string(options.radius) + ", expected 0 or more");
  }
  if (!(options.share > 0) || !(options.share <= 1)) {
    return bad("share is " + std::to_string(options.share) + ", expected above 0, at most 1");
  }
  if (!(options.growth >= 1) || !std::isfinite(options.growth)) {
    return bad("growth is " + std::to_string(options.growth) + ", expected 1 or more");
  }
  if (options.most_members < 4) {
    return bad("most_members is " + std::to_string(options.most_members) + ", expected at least 4");
  }
  if (options.looked_at < 2) {
    return bad("looked_at is " + std::to_string(options.looked_at) + ", expected at least 2");
  }
  return OkStatus();
}

struct Gardener::State {
  GardenerOptions options;
  VectorOf vector_of;
  std::deque<Level> levels;
  std::unordered_map<int64_t, int64_t> centre_of;  // block -> centre of level 0
  Sums all;
  double spread = 0;  // the squared radius of all
  int64_t next_id = kFirstTopic;
  // Since the last TakeChange.
  std::map<int64_t, int32_t> changed;        // centres, and their levels
  std::set<int64_t> dropped;                 // centres
  std::map<int64_t, int64_t> parent_before;  // of members with another parent now; 0: none

  State(const GardenerOptions& with, VectorOf by) : options(with), vector_of(std::move(by)), all(with.dimension) {
    for (int32_t level = 0; level < options.levels; ++level) levels.emplace_back(options.dimension, options.looked_at);
  }

  [[nodiscard]] bool IsHighest(int32_t level) const { return level + 1 == options.levels; }
  Growing& Of(int32_t level, int64_t id) { return levels[static_cast<size_t>(level)].Of(id); }

  [[nodiscard]] double SquaredRadius(int32_t level) const {
    const double first = options.radius > 0 ? options.radius * options.radius : options.share * options.share * spread;
    return first * std::pow(options.growth, 2 * level);
  }

  [[nodiscard]] double Radius(int32_t level) const { return std::sqrt(SquaredRadius(level)); }

  // Set the parent of a centre, or of a block: a centre of level + 1, or of level 0 for a block.
  void SetParent(int64_t member, int64_t before, int64_t parent) {
    parent_before.try_emplace(member, before);
    if (member < kFirstTopic) {
      centre_of[member] = parent;
    }
  }

  void Moved(int32_t level, int64_t id) {
    changed[id] = level;
    levels[static_cast<size_t>(level)].index.Put(id);
  }

  // Return the two centres of a level nearest to a mean, no farther than `farthest`, not `without`; ties by the older.
  Nearest NearestTo(int32_t level, const Sums& to, double farthest, int64_t without = 0) {
    Level& of = levels[static_cast<size_t>(level)];
    Nearest near;
    for (const CentreIndex::Candidate& candidate : of.index.Nearest(to, without == 0 ? 2 : 3, farthest)) {
      if (candidate.id == without) continue;
      if (near.count == 2 && candidate.least * candidate.least > near.centres[1].cost) break;
      const double squared_distance = SquaredDistance(of.Of(candidate.id).sums, to);
      if (squared_distance <= farthest * farthest) Keep({candidate.id, squared_distance, squared_distance}, near);
    }
    return near;
  }

  // Of the centres near to a new member, return the two to which it adds the least (kJoinedAmong).
  Nearest CheapestFor(int32_t level, const Sums& member) {
    Level& of = levels[static_cast<size_t>(level)];
    const double farthest = kFarthest * Radius(level);
    const auto share = [&member](int64_t count) {
      return static_cast<double>(count) / static_cast<double>(count + member.count());
    };
    Nearest near;
    for (const CentreIndex::Candidate& candidate : of.index.Nearest(member, kJoinedAmong, farthest)) {
      if (near.count == 2 && share(1) * candidate.least * candidate.least > near.centres[1].cost) break;
      const Sums& centre = of.Of(candidate.id).sums;
      const double squared_distance = SquaredDistance(centre, member);
      if (squared_distance > farthest * farthest) continue;
      Keep({candidate.id, squared_distance, share(centre.count()) * squared_distance}, near);
    }
    return near;
  }

  static void Keep(const Near& one, Nearest& near) {
    if (near.count == 0 || one < near.centres[0]) {
      near.centres[1] = near.centres[0];
      near.centres[0] = one;
    } else if (near.count == 1 || one < near.centres[1]) {
      near.centres[1] = one;
    }
    near.count = std::min(near.count + 1, 2);
  }

  [[nodiscard]] bool Takes(int32_t level, const Near& centre, const Sums& member) {
    const double most = SquaredRadius(level);
    return centre.squared_distance <= kFarthest * kFarthest * most &&
           SquaredRadiusOfBoth(Of(level, centre.id).sums, member) <= most;
  }

  // Add to, or subtract from, a centre and all above it.
  enum class Sign { kAdd, kSubtract };
  void Change(int32_t level, int64_t id, const Sums& sums, Sign sign, double time) {
    for (; id != 0; id = Of(level++, id).parent) {
      Growing& centre = Of(level, id);
      if (sign == Sign::kAdd) {
        centre.sums.Add(sums);
        centre.updated_at = std::max(centre.updated_at, time);
      } else {
        centre.sums.Subtract(sums);
      }
      if (centre.sums.count() > 0) Moved(level, id);
    }
  }

  void AddMember(int32_t level, int64_t id, int64_t member) {
    Growing& centre = Of(level, id);
    centre.members.insert(std::ranges::upper_bound(centre.members, member), member);
    if (level > 0) Of(level - 1, member).parent = id;
  }
  void RemoveMember(int32_t level, int64_t id, int64_t member) {
    Growing& centre = Of(level, id);
    centre.members.erase(std::ranges::lower_bound(centre.members, member));
  }

  // Put a member, a block or a centre of the level below, where it belongs.
  Status Attach(int32_t level, int64_t member, const Sums& sums, double time) {
    const Nearest near = CheapestFor(level, sums);
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
    Growing centre;
    centre.sums = sums;
    centre.created_at = centre.updated_at = time;
    levels[static_cast<size_t>(level)].Emplace(id, std::move(centre));
    SetParent(member, 0, id);
    AddMember(level, id, member);
    Moved(level, id);
    return IsHighest(level) ? OkStatus() : Attach(level + 1, id, sums, time);
  }

  [[nodiscard]] bool IsTooMuch(int32_t level, const Growing& centre) const {
    const int64_t members = std::ssize(centre.members);
    if (members < 2 || (centre.could_not_split > 0 && members < 2 * centre.could_not_split)) return false;
    return members > options.most_members ||
           centre.sums.SquaredRadius() > kSplitFrom * kSplitFrom * SquaredRadius(level);
  }

  // Split a centre, and all above it, as far as they are too wide or too full.
  Status SplitUpwards(int32_t level, int64_t id) {
    for (; id != 0; ++level) {
      const int64_t above = Of(level, id).parent;
      EVERLONG_RETURN_IF_ERROR(SplitIfTooMuch(level, id));
      id = above;
    }
    return OkStatus();
  }

  Result<index::WeightedPoints> PointsOf(int32_t level, const Growing& centre) {
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

  Status SplitIfTooMuch(int32_t level, int64_t id) {
    if (!IsTooMuch(level, Of(level, id))) return OkStatus();
    Growing& centre = Of(level, id);
    EVERLONG_ASSIGN_OR_RETURN(const index::WeightedPoints points, PointsOf(level, centre));
    const bool is_full = std::ssize(centre.members) > options.most_members;
    const std::vector<bool> right =
        index::TwoMeans(points, MixedBits(options.seed, static_cast<uint64_t>(id)), is_full);
    if (std::ranges::count(right, true) == 0) {
      centre.could_not_split = std::ssize(centre.members);
      return OkStatus();
    }
    centre.could_not_split = 0;
    // The side of the oldest member keeps the id.
    const bool goes = !right[0];
    const int64_t other_id = next_id++;
    Growing other;
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
        Growing& below = Of(level - 1, member);
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
    levels[static_cast<size_t>(level)].Emplace(other_id, std::move(other));
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

  // Merge two centres of a level, the older one first, if they have become one. It keeps the older one's id.
  bool MergeIfOne(int32_t level, int64_t id, int64_t other_id) {
    Growing& centre = Of(level, id);
    Growing& other = Of(level, other_id);
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

  void Erase(int32_t level, int64_t id) {
    levels[static_cast<size_t>(level)].Erase(id);
    changed.erase(id);
    parent_before.erase(id);
    dropped.insert(id);
  }

  // Take a member out of a centre. A centre without members is removed.
  void TakeFrom(int32_t level, int64_t id, int64_t member, const Sums& sums) {
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

  // Check some centre now and then: blocks may never join it again, and the radius changes with all blocks.
  Status Walk(uint64_t draw) {
    for (int32_t level = 0; level < options.levels && draw % kWalkEvery == 0; ++level, draw /= kWalkEvery) {
      const std::map<int64_t, Growing>& centres = levels[static_cast<size_t>(level)].centres;
      const auto ids = static_cast<uint64_t>(centres.rbegin()->first - centres.begin()->first + 1);
      const int64_t drawn = centres.begin()->first + static_cast<int64_t>(MixedBits(draw, level) % ids);
      int64_t id = centres.lower_bound(drawn)->first;
      EVERLONG_RETURN_IF_ERROR(SplitUpwards(level, id));
      // Each merge removes a centre that was made before, so all merges together cost no more than making them.
      while (true) {
        const Nearest near = NearestTo(level, Of(level, id).sums, kMergeBelow * Radius(level), id);
        if (near.count == 0) break;
        const int64_t other = near.centres[0].id;
        if (!MergeIfOne(level, std::min(id, other), std::max(id, other))) break;
        id = std::min(id, other);
      }
      if (!IsHighest(level)) EVERLONG_RETURN_IF_ERROR(MoveIfNearer(level, id));
    }
    return OkStatus();
  }

  // Move a centre to another parent, if that is much nearer than its own.
  Status MoveIfNearer(int32_t level, int64_t id) {
    const int64_t parent = Of(level, id).parent;
    const double now = SquaredDistance(Of(level + 1, parent).sums, Of(level, id).sums);
    const Nearest near = NearestTo(level + 1, Of(level, id).sums, kMoveBelow * std::sqrt(now));
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
};

Gardener::Gardener(const GardenerOptions& options, VectorOf vector_of)
    : state_(std::make_unique<State>(options, std::move(vector_of))) {
  EVERLONG_CHECK(Validate(options).ok());
}
Gardener::~Gardener() = default;
Gardener::Gardener(Gardener&&) noexcept = default;
Gardener& Gardener::operator=(Gardener&&) noexcept = default;

Status Gardener::Restore(std::span<const store::GraphNode> topics, std::span<const store::GraphEdge> belongs) {
  State& s = *state_;
  const auto corrupt = [](int64_t id, const char* what) {
    return CorruptError("topic " + std::to_string(id) + " " + what);
  };
  std::unordered_map<int64_t, int32_t> level_of;
  for (const store::GraphNode& topic : topics) {
    if (topic.level < 0 || topic.level >= s.options.levels || std::ssize(topic.linear_sum) != s.options.dimension ||
        topic.count < 1) {
      return corrupt(topic.id, "does not fit the graph's options");
    }
    level_of[topic.id] = topic.level;
    s.next_id = std::max(s.next_id, topic.id + 1);
    Growing centre;
    centre.sums = Sums(topic.count, topic.linear_sum, topic.square_sum);
    centre.created_at = topic.created_at;
    centre.updated_at = topic.updated_at;
    s.levels[static_cast<size_t>(topic.level)].Emplace(topic.id, std::move(centre));
  }
  for (const store::GraphEdge& edge : belongs) {
    const auto to = level_of.find(edge.to);
    if (to == level_of.end()) continue;  // an edge that somebody else put there
    const auto from = level_of.find(edge.from);
    const int32_t level = from == level_of.end() ? -1 : from->second;
    if (to->second != level + 1) return corrupt(edge.to, "has a member of another level");
    if (level < 0) {
      if (!s.centre_of.emplace(edge.from, edge.to).second)
        return corrupt(edge.to, "and another topic have the same block");
    } else if (std::exchange(s.Of(level, edge.from).parent, edge.to) != 0) {
      return corrupt(edge.to, "and another topic have the same topic below");
    }
    s.Of(to->second, edge.to).members.push_back(edge.from);
  }
  for (int32_t level = 0; level < s.options.levels; ++level) {
    for (auto& [id, centre] : s.levels[static_cast<size_t>(level)].centres) {
      int64_t below = 0;
      for (const int64_t member : centre.members) below += level == 0 ? 1 : s.Of(level - 1, member).sums.count();
      if (below != centre.sums.count()) return corrupt(id, "has another count than its blocks");
      if ((centre.parent == 0) != s.IsHighest(level)) return corrupt(id, "has no parent topic");
      std::ranges::sort(centre.members);
      if (level == 0) s.all.Add(centre.sums);
    }
  }
  s.spread = s.all.SquaredRadius();
  for (int32_t level = 0; level < s.options.levels; ++level) {
    for (const auto& [id, centre] : s.levels[static_cast<size_t>(level)].centres) {
      s.Moved(level, id);
    }
  }
  s.changed.clear();
  return OkStatus();
}

Status Gardener::Add(int64_t block, std::span<const float> vector, double time) {
  State& s = *state_;
  if (std::ssize(vector) != s.options.dimension) {
    return InvalidArgumentError("the vector of block " + std::to_string(block) + " has " +
                                std::to_string(vector.size()) + " numbers, expected " +
                                std::to_string(s.options.dimension));
  }
  if (block < 1 || block >= kFirstTopic) {
    return InvalidArgumentError("block is " + std::to_string(block) + ", expected 1 to " +
                                std::to_string(kFirstTopic - 1));
  }
  if (Has(block)) return AlreadyExistsError("block " + std::to_string(block) + " has its place");
  EVERLONG_ASSIGN_OR_RETURN(const Sums sums, Sums::Of(vector));
  s.all.Add(sums);
  s.spread = s.all.SquaredRadius();
  EVERLONG_RETURN_IF_ERROR(s.Attach(0, block, sums, time));
  const uint64_t draw = MixedBits(s.options.seed, static_cast<uint64_t>(block));
  return s.Walk(draw);
}

Status Gardener::Forget(int64_t block) {
  State& s = *state_;
  const auto found = s.centre_of.find(block);
  if (found == s.centre_of.end()) return NotFoundError("block " + std::to_string(block) + " has no place");
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<float> vector, s.vector_of(block));
  EVERLONG_ASSIGN_OR_RETURN(const Sums sums, Sums::Of(vector));
  if (sums.dimension() != s.options.dimension) {
    return CorruptError("the vector of block " + std::to_string(block) + " is of another size");
  }
  const int64_t centre = found->second;
  s.centre_of.erase(found);
  s.parent_before.erase(block);
  s.all.Subtract(sums);
  s.spread = s.all.SquaredRadius();
  s.TakeFrom(0, centre, block, sums);
  return OkStatus();
}

bool Gardener::Has(int64_t block) const { return state_->centre_of.contains(block); }

std::optional<int64_t> Gardener::CentreOf(int64_t block) const {
  const auto found = state_->centre_of.find(block);
  return found == state_->centre_of.end() ? std::nullopt : std::optional(found->second);
}

store::GraphChange Gardener::TakeChange() {
  State& s = *state_;
  store::GraphChange change;
  for (const int64_t id : s.dropped) change.drop_nodes.push_back(id);
  for (const auto& [id, level] : s.changed) {
    const Growing& centre = s.Of(level, id);
    store::GraphNode node;
    node.id = id;
    node.kind = store::NodeKind::kTopic;
    node.level = level;
    node.vector = centre.sums.Mean();
    node.count = centre.sums.count();
    node.linear_sum.assign(centre.sums.linear().begin(), centre.sums.linear().end());
    node.square_sum = centre.sums.square();
    node.created_at = centre.created_at;
    node.updated_at = centre.updated_at;
    change.put_nodes.push_back(std::move(node));
  }
  std::unordered_map<int64_t, const Growing*> centres;
  for (const Level& level : s.levels) {
    for (const auto& [member, before] : s.parent_before) {
      const auto found = level.centres.find(member);
      if (found != level.centres.end()) centres[member] = &found->second;
    }
  }
  for (const auto& [member, before] : s.parent_before) {
    const auto of_centre = centres.find(member);
    const int64_t parent = of_centre != centres.end() ? of_centre->second->parent : s.centre_of.at(member);
    if (parent == before) continue;
    if (before != 0) change.drop_edges.push_back({member, before, store::EdgeKind::kBelongsTo});
    change.put_edges.push_back({member, parent, store::EdgeKind::kBelongsTo, 1, 0});
  }
  s.changed.clear();
  s.dropped.clear();
  s.parent_before.clear();
  return change;
}

std::vector<Centre> Gardener::Centres() const {
  std::vector<Centre> centres;
  for (int32_t level = 0; level < state_->options.levels; ++level) {
    for (const auto& [id, centre] : state_->levels[static_cast<size_t>(level)].centres) {
      centres.push_back({id, level, centre.parent, centre.sums, centre.members, centre.created_at, centre.updated_at});
    }
  }
  return centres;
}

int64_t Gardener::centres(int32_t level) const {
  return std::ssize(state_->levels[static_cast<size_t>(level)].centres);
}
const Sums& Gardener::all() const { return state_->all; }
double Gardener::Radius(int32_t level) const { return state_->Radius(level); }

int64_t Gardener::bytes() const {
  int64_t bytes = std::ssize(state_->centre_of) * 48;  // about, in the usual libraries
  for (const Level& level : state_->levels) {
    const auto of_centre = static_cast<int64_t>(sizeof(Growing) + 64) +
                           int64_t{state_->options.dimension} * static_cast<int64_t>(sizeof(double));
    bytes += level.index.bytes() + std::ssize(level.centres) * of_centre + std::ssize(state_->centre_of) * 8;
  }
  return bytes;
}

}  // namespace everlong::graph
