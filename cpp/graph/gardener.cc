#include "everlong/graph/gardener.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <utility>

#include "everlong/base/check.h"
#include "everlong/base/mixed_bits.h"
#include "growing_topics.h"

namespace everlong::graph {

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
    GrowingTopic centre;
    centre.sums = Sums(topic.count, topic.linear_sum, topic.square_sum);
    centre.created_at = topic.created_at;
    centre.updated_at = topic.updated_at;
    s.At(topic.level).Emplace(topic.id, std::move(centre));
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
    for (auto& [id, centre] : s.At(level).centres) {
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
    for (const auto& [id, centre] : s.At(level).centres) {
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
    const GrowingTopic& centre = s.Of(level, id);
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
  std::unordered_map<int64_t, const GrowingTopic*> centres;
  for (const TopicLevel& level : s.levels) {
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
    for (const auto& [id, centre] : state_->At(level).centres) {
      centres.push_back({id, level, centre.parent, centre.sums, centre.members, centre.created_at, centre.updated_at});
    }
  }
  return centres;
}

int64_t Gardener::centres(int32_t level) const { return std::ssize(state_->At(level).centres); }
const Sums& Gardener::all() const { return state_->all; }
double Gardener::Radius(int32_t level) const { return state_->Radius(level); }

int64_t Gardener::bytes() const {
  int64_t bytes = std::ssize(state_->centre_of) * 48;  // about, in the usual libraries
  for (const TopicLevel& level : state_->levels) {
    const auto of_centre = static_cast<int64_t>(sizeof(GrowingTopic) + 64) +
                           int64_t{state_->options.dimension} * static_cast<int64_t>(sizeof(double));
    bytes += level.index.bytes() + std::ssize(level.centres) * of_centre + std::ssize(state_->centre_of) * 8;
  }
  return bytes;
}

}  // namespace everlong::graph
