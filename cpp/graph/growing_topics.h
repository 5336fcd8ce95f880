// The topics of a Gardener while they grow: centres on every level, with the sums and members of each.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "centre_index.h"
#include "everlong/base/status.h"
#include "everlong/graph/gardener.h"
#include "everlong/graph/sums.h"
#include "everlong/index/two_means.h"

namespace everlong::graph {

// A centre. Its members are blocks on level 0, and centres of the level below above it.
struct GrowingTopic {
  Sums sums;
  std::vector<int64_t> members;
  int64_t parent = 0;
  double created_at = 0;
  double updated_at = 0;
  int64_t could_not_split = 0;  // with so many members
};

struct TopicLevel {
  TopicLevel(int32_t dimension, int64_t looked_at)
      : index(dimension, looked_at, [this](int64_t id) -> const Sums& { return Of(id).sums; }) {}
  TopicLevel(const TopicLevel&) = delete;
  TopicLevel& operator=(const TopicLevel&) = delete;

  GrowingTopic& Of(int64_t id) { return *places.find(id)->second; }
  void Emplace(int64_t id, GrowingTopic&& centre) {
    places[id] = &centres.emplace(id, std::move(centre)).first->second;
  }
  void Erase(int64_t id) {
    index.Remove(id);
    places.erase(id);
    centres.erase(id);
  }

  std::map<int64_t, GrowingTopic> centres;
  std::unordered_map<int64_t, GrowingTopic*> places;  // the same centres, as a lookup in the map takes many steps
  CentreIndex index;
};

// Two centres near to a mean, the nearest first.
struct NearTopics {
  struct Near {
    int64_t id = 0;
    double squared_distance = 0;
    double cost = 0;  // the nearest has the least
  };
  void Keep(const Near& one);

  Near centres[2];
  int32_t count = 0;
};

struct Gardener::State {
  GardenerOptions options;
  VectorOf vector_of;
  std::deque<TopicLevel> levels;
  std::unordered_map<int64_t, int64_t> centre_of;  // block -> centre of level 0
  Sums all;
  double spread = 0;  // the squared radius of all
  int64_t next_id = kFirstTopic;
  // Since the last TakeChange.
  std::map<int64_t, int32_t> changed;        // centres, and their levels
  std::set<int64_t> dropped;                 // centres
  std::map<int64_t, int64_t> parent_before;  // of members with another parent now; 0: none

  State(const GardenerOptions& with, VectorOf by);

  TopicLevel& At(int32_t level) { return levels[static_cast<size_t>(level)]; }
  GrowingTopic& Of(int32_t level, int64_t id) { return At(level).Of(id); }
  [[nodiscard]] bool IsHighest(int32_t level) const { return level + 1 == options.levels; }
  [[nodiscard]] double SquaredRadius(int32_t level) const;
  [[nodiscard]] double Radius(int32_t level) const;

  // --- centres and their members

  // Set the parent of a centre, or of a block: a centre of level + 1, or of level 0 for a block.
  void SetParent(int64_t member, int64_t before, int64_t parent);
  void Moved(int32_t level, int64_t id);
  // Return the two centres of a level nearest to a mean, no farther than `farthest`, not `without`; ties by the older.
  NearTopics NearestTo(int32_t level, const Sums& to, double farthest, int64_t without = 0);
  // Of the centres near to a new member, return the two to which it adds the least.
  NearTopics CheapestFor(int32_t level, const Sums& member);
  [[nodiscard]] bool Takes(int32_t level, const NearTopics::Near& centre, const Sums& member);
  // Add to, or subtract from, a centre and all above it.
  enum class Sign { kAdd, kSubtract };
  void Change(int32_t level, int64_t id, const Sums& sums, Sign sign, double time);
  void AddMember(int32_t level, int64_t id, int64_t member);
  void RemoveMember(int32_t level, int64_t id, int64_t member);
  // Take a member out of a centre. A centre without members is removed.
  void TakeFrom(int32_t level, int64_t id, int64_t member, const Sums& sums);
  void Erase(int32_t level, int64_t id);

  // --- growth

  // Put a member, a block or a centre of the level below, where it belongs.
  Status Attach(int32_t level, int64_t member, const Sums& sums, double time);
  // Split a centre, and all above it, as far as they are too wide or too full.
  Status SplitUpwards(int32_t level, int64_t id);
  Status SplitIfTooMuch(int32_t level, int64_t id);
  [[nodiscard]] bool IsTooMuch(int32_t level, const GrowingTopic& centre) const;
  Result<index::WeightedPoints> PointsOf(int32_t level, const GrowingTopic& centre);
  // Merge two centres of a level, the older one first, if they have become one. It keeps the older one's id.
  bool MergeIfOne(int32_t level, int64_t id, int64_t other_id);
  // Check some centre now and then: blocks may never join it again, and the radius changes with all blocks.
  Status Walk(uint64_t draw);
  // Move a centre to another parent, if that is much nearer than its own.
  Status MoveIfNearer(int32_t level, int64_t id);
};

}  // namespace everlong::graph
