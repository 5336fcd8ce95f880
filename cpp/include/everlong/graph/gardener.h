// The Gardener: streaming clustering of blocks into topics, topics into wider topics (both designs, 2.4). A block goes
// to a near centre that takes it or becomes a new one; the centre drifts with it; centres that are too wide or too
// full are split, two that have become one are merged; and centres are gathered by the same rule, a level up. BIRCH's
// sums (sums.h), one pass, nothing read twice but the members of a centre that is split.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/graph/sums.h"
#include "everlong/store/graph.h"

namespace everlong::graph {

// Ids of topics lie from here on.
inline constexpr int64_t kFirstTopic = int64_t{1} << 36;

struct GardenerOptions {
  int32_t dimension = 0;  // of vectors, >= 1
  int32_t levels = 2;     // of centres, >= 1: real -> virtual -> virtual
  // The widest that a centre of level 0 grows: the root of its members' mean squared distance from their mean, in the
  // unit of the vectors. 0: `share` of that of all blocks, so that the vectors' scale does not count.
  double radius = 0;
  double share = 0.7;
  double growth = 1.25;         // of the radius, a level
  int64_t most_members = 4096;  // of a centre: blocks on level 0, centres above; >= 4
  int64_t looked_at = 2048;     // centres of a level that a search for the nearest looks at; of fewer at all
  uint64_t seed = 0;            // of the axis a split begins with, and of which centre is looked after next
  bool operator==(const GardenerOptions&) const = default;
};
// kInvalidArgument that names what there cannot be.
Status Validate(const GardenerOptions& options);

// A centre as it is now.
struct Centre {
  int64_t id = 0;
  int32_t level = 0;
  int64_t parent = 0;            // 0 on the highest level
  Sums sums;                     // of all blocks below it
  std::vector<int64_t> members;  // blocks on level 0, centres above; ascending
  double created_at = 0;
  double updated_at = 0;
};

// Deterministic: the same calls give the same centres, on any machine. One thread at a time. The vectors of blocks are
// not kept here. Where a call fails for another reason than its arguments (kInvalidArgument, kAlreadyExists, kNotFound:
// nothing has changed then), this is of no use any more.
class Gardener {
 public:
  // The vector [dimension] that a block was added with.
  using VectorOf = std::function<Result<std::vector<float>>(int64_t block)>;

  Gardener(const GardenerOptions& options, VectorOf vector_of);
  ~Gardener();
  Gardener(Gardener&&) noexcept;
  Gardener& operator=(Gardener&&) noexcept;

  // What TakeChange put somewhere: topics, and edges of kBelongsTo. kCorrupt when these are not such.
  Status Restore(std::span<const store::GraphNode> topics, std::span<const store::GraphEdge> belongs);

  // A block, once. `time` is seconds since 1970. kInvalidArgument on a wrong size and as Sums::Of, kAlreadyExists.
  Status Add(int64_t block, std::span<const float> vector, double time);
  // Takes a block out: all sums are what they would be had it never come. kNotFound.
  Status Forget(int64_t block);
  [[nodiscard]] bool Has(int64_t block) const;
  [[nodiscard]] std::optional<int64_t> CentreOf(int64_t block) const;

  // All that differs since the last call, but for nodes of blocks, which the caller has put and drops.
  store::GraphChange TakeChange();

  [[nodiscard]] std::vector<Centre> Centres() const;  // by level, then id
  [[nodiscard]] int64_t centres(int32_t level) const;
  [[nodiscard]] const Sums& all() const;  // of all blocks
  [[nodiscard]] double Radius(int32_t level) const;
  [[nodiscard]] int64_t bytes() const;  // of host memory, about

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace everlong::graph
