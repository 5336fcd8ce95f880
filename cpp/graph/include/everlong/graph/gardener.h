// The Gardener: streaming clustering of blocks into topics, and of topics into wider topics. A block joins a near
// centre that accepts it, or becomes a new centre. A centre moves as blocks join it. A centre that is too wide or too
// full is split, and two that have become one are merged. Centres are clustered by the same rule one level up. It works
// in one pass over BIRCH's sums (sums.h), and reads again only the members of a centre that it splits.
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

// Topics have ids from here.
inline constexpr int64_t kFirstTopic = int64_t{1} << 36;

struct GardenerOptions {
  int32_t dimension = 0;  // of the vectors, >= 1
  int32_t levels = 2;     // of centres, >= 1
  // The largest radius of a centre on level 0, in the unit of the vectors. A radius is the root of the members' mean
  // squared distance from their mean. 0 means `share` of the radius of all blocks, whatever the scale of the vectors.
  double radius = 0;
  double share = 0.7;
  double growth = 1.25;         // factor of the radius from one level to the next
  int64_t most_members = 4096;  // of a centre, >= 4: blocks on level 0, centres above
  int64_t looked_at = 2048;     // most centres of a level that a search for the nearest looks at, >= 2
  uint64_t seed = 0;            // for the first axis of a split, and for which centre is checked next
  bool operator==(const GardenerOptions&) const = default;
};
// Return kInvalidArgument that names an option out of range.
Status Validate(const GardenerOptions& options);

// A centre as it is now.
struct Centre {
  int64_t id = 0;
  int32_t level = 0;
  int64_t parent = 0;            // 0 on the highest level
  Sums sums;                     // of all blocks below it
  std::vector<int64_t> members;  // ascending ids: blocks on level 0, centres above
  double created_at = 0;
  double updated_at = 0;
};

// The same calls give the same centres on any machine. Use it from one thread at a time. It keeps no vectors of blocks.
// kInvalidArgument, kAlreadyExists and kNotFound leave it unchanged. After any other failure it must not be used again.
class Gardener {
 public:
  // Return the vector [dimension] that a block was added with.
  using VectorOf = std::function<Result<std::vector<float>>(int64_t block)>;

  Gardener(const GardenerOptions& options, VectorOf vector_of);
  ~Gardener();
  Gardener(Gardener&&) noexcept;
  Gardener& operator=(Gardener&&) noexcept;

  // Restore what TakeChange returned: topics, and edges of kBelongsTo. kCorrupt when they do not form a valid state.
  Status Restore(std::span<const store::GraphNode> topics, std::span<const store::GraphEdge> belongs);

  // Add a block. `time` is in seconds since 1970. kInvalidArgument on a wrong size and as in Sums::Of; kAlreadyExists.
  Status Add(int64_t block, std::span<const float> vector, double time);
  // Remove a block. All sums become what they would be without it. kNotFound.
  Status Forget(int64_t block);
  [[nodiscard]] bool Has(int64_t block) const;
  [[nodiscard]] std::optional<int64_t> CentreOf(int64_t block) const;

  // Return all changes since the last call, without the nodes of blocks: the caller adds and drops those.
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
